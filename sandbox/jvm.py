"""The JVM parts: their location, their download, and the commands that run Kafka's programs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brew.errors import Refused, UsageError
from brew.jvm import dependencies
from brew.jvm.dependencies import KAFKAS, Part, setup_command

# Kafka's command line tools and their main classes.
TOOLS: Mapping[str, str] = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}

# C1 only: a program that runs for a second or two ends before the second compiler pays off.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class Jvm:
    """The files of `sandbox setup`: `kafka/*.jar`, and `kafka.jsa` if available; ``part`` selects the version."""

    home: Path = field(default_factory=dependencies.home)
    part: Part = Part.KAFKA

    @property
    def archive(self) -> Path:
        return self.home / f"{self.part}.jsa"

    def class_path(self) -> str:
        """Return the jars in a fixed order: a class-data archive works with one order only."""
        if not (jars := [str(jar) for jar in dependencies.jars(self.part, self.home)]):
            raise dependencies.missing_jars(self.part, self.home)
        return ":".join(jars)

    def command(self, main: str, arguments: Sequence[str], *, flags: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs ``main``; the JVM silently ignores an archive that doesn't match."""
        if (java := shutil.which("java")) is None:
            raise Refused("no java on PATH; Java 17 or later is needed (a JRE is enough)")
        shared = [f"-XX:SharedArchiveFile={self.archive}"] if self.archive.exists() else []
        quiet = ["-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        return [java, *quiet, *shared, *flags, "-cp", self.class_path(), main, *arguments]

    def tool(self, name: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line of one of Kafka's tools; raise `UsageError`, naming all, if ``name`` is unknown."""
        if name not in TOOLS:
            raise UsageError(f"no tool {name!r}; choose one of: {' '.join(TOOLS)}")
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return self.command(TOOLS[name], arguments, flags=[*QUICK, log])


_TEXT = """Fetch a Kafka broker and Kafka's own tools, and verify their checksums.

Examples:
  brew-sandbox setup                            into the user's cache, from a Maven repository
  brew-sandbox setup --from /media/jars         on a machine without a network
  brew-sandbox setup --kafka 3.9.2              an older version, for `sandbox up --kafka 3.9.2`
"""


setup = setup_command(Part.KAFKA, _TEXT, lambda _home: None, KAFKAS)

_YARN_TEXT = """Fetch YARN's own servers (Hadoop's mini cluster, 66 MB), and verify their checksums.

Example:
  brew-sandbox setup-yarn
"""

setup_yarn = setup_command(Part.YARN, _YARN_TEXT, lambda _home: None)
