"""`pipeline setup`: what Spark needs and pip does not bring."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from brew.jvm.dependencies import Part, java, setup_command
from brew.spark.gateway import OPTIONS

_ASK_S = 60.0
_SCALA = "2.13"
_JAVA_OPTIONS = ("--", "-XX", "-D")

_TEXT = """Fetch the jars with which Spark reads Kafka, and compare them with the checksums of this version.

Once per machine that runs a driver; `--master none` needs none of it. Executors get them from the driver.

\b
Examples:
  brew-pipeline setup                           into the user's cache, from a Maven repository
  brew-pipeline setup --from /media/jars        on a machine without a network
  brew-pipeline setup --jvm-dir /opt/brew/jvm   then set BREW_JVM_DIR to it for runs, too
"""


def ask_launcher(place: Path) -> None:
    """
    Keep what Spark's own launcher adds to Java's command line; a start then needs no launcher, which is a JVM, too.

    Where it does not answer, nothing is kept and the launcher is used.
    """
    root = Path(pyspark.__file__).parent
    kept = place / OPTIONS
    command = [java(), "-cp", f"{root}/jars/*", "org.apache.spark.launcher.Main"]
    command += ["org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    environment = {**os.environ, "SPARK_HOME": str(root), "SPARK_SCALA_VERSION": _SCALA}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        kept.unlink(missing_ok=True)
        return
    words = [word for word in done.stdout.decode().split("\0") if word.startswith(_JAVA_OPTIONS)]
    kept.write_text("".join(f"{word}\n" for word in words))


setup = setup_command(Part.SPARK, _TEXT, ask_launcher)
