"""The jars that pip does not install: their checksums, their folders, and the command that fetches them."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from brew.errors import Refused

VARIABLE = "BREW_JVM_DIR"
VERSIONS = "spark-4.2.0-kafka-4.1.1"
"""The folder's name in the cache; another version of this package may need other jars."""

IVY = Path(__file__).with_name("ivy.xml")
"""What to fetch; whoever changes it runs scripts/resolve_jars.py."""
LOCK = Path(__file__).with_name("jars.lock")
"""Each jar that follows from it: SHA-256, part, organisation, module, revision, and what is no jar, its type."""
_CHECKOUT = Path(__file__).resolve().parents[2]


class Part(enum.StrEnum):
    """A set of jars, and the folder and Ivy configuration of that name."""

    SPARK = "spark"
    KAFKA = "kafka"
    KAFKA_3_9 = "kafka-3.9.2"
    KAFKA_3_3 = "kafka-3.3.2"
    YARN = "yarn"
    REGISTRY = "registry"


KAFKAS: Mapping[str, Part] = {"4.1.1": Part.KAFKA, "3.9.2": Part.KAFKA_3_9, "3.3.2": Part.KAFKA_3_3}
"""The available brokers by version; the first is the default."""

COMMANDS: Mapping[Part, str] = {
    Part.SPARK: "brew-pipeline setup",
    Part.KAFKA: "brew-sandbox setup",
    Part.KAFKA_3_9: "brew-sandbox setup --kafka 3.9.2",
    Part.KAFKA_3_3: "brew-sandbox setup --kafka 3.3.2",
    Part.YARN: "brew-sandbox setup-yarn",
    Part.REGISTRY: "brew-sandbox stores up registry",
}
"""The command that fetches a part in an installed package."""


def home(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the JVM parts' folder: ``folder``, `BREW_JVM_DIR`, a checkout's `.jvm`, or this version's in the cache."""
    if chosen := folder or os.environ.get(VARIABLE):
        return Path(chosen)
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT / ".jvm"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "brew" / VERSIONS


@dataclass(frozen=True, slots=True)
class Jar:
    sha256: str
    part: str
    organisation: str
    module: str
    revision: str
    ext: str = "jar"
    classifier: str = ""

    @property
    def name(self) -> str:
        return f"{self.module}-{self.revision}.{self.ext}"


def locked(part: Part) -> list[Jar]:
    return [jar for jar in (Jar(*line.split()) for line in LOCK.read_text().splitlines()) if jar.part == part]


def checksums(part: Part) -> dict[str, str]:
    return {jar.name: jar.sha256 for jar in locked(part)}


def jars(part: Part, folder: Path) -> list[Path]:
    """Return the jars (the registry: an archive) of ``part`` below ``folder``, sorted; empty if never fetched."""
    return sorted([*(folder / part).glob("*.jar"), *(folder / part).glob("*.tar.gz")])


def check(part: Part, jvm_dir: Path) -> None:
    """Compare the jars with the checksums; raises `Refused` if one is missing, unknown or not the tested one."""
    expected, folder = checksums(part), jvm_dir / part
    present = {file.name for file in jars(part, jvm_dir)}
    if missing := sorted(expected.keys() - present):
        raise Refused(
            f"{missing[0]} is not in {folder} ({len(missing)} of {len(expected)} jars missing); {_remedy(part)} again"
        )
    if foreign := sorted(present - expected.keys()):
        raise Refused(f"{folder / foreign[0]} is not a jar of this version; remove it, or {_remedy(part)} again")
    for name, digest in expected.items():
        if (actual := sha256(folder / name)) != digest:
            raise Refused(
                f"{folder / name} has the SHA-256 {actual[:16]}..., this version needs {digest[:16]}...: "
                f"it is damaged, or another jar of that name; remove it and {_remedy(part)} again"
            )


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def missing_jars(part: Part, folder: Path) -> Refused:
    return Refused(f"no jars in {folder / part}; {_remedy(part)}, or set {VARIABLE} to the directory that has them")


def _remedy(part: Part) -> str:
    """Return which command to run; a checkout has `make setup` for the default parts, and the sandbox for others."""
    default = part in {Part.SPARK, Part.KAFKA}
    in_checkout = "make setup" if default else COMMANDS[part].replace("brew-sandbox", "python -m sandbox")
    return f"run `{COMMANDS[part]}` (in a checkout `{in_checkout}`)"


_MIN_JAVA = 17
_JAVA_S = 20.0
_FETCH_S = 900.0
_LOG_LINES = 12


def fetch(part: Part, jvm_dir: Path, source: Path | None = None) -> bool:
    """
    Fetch the jars of ``part`` into a folder of that name in ``jvm_dir``; return True if they were not there yet.
    ``source``: a folder that holds them, for machines without a network; otherwise Ivy uses its Maven repository.
    Raises `Refused`: no Java, no network, no space, or jars that are not those of this version.
    """
    try:
        jvm_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{jvm_dir} can't be created ({error.strerror}); set --jvm-dir to another directory") from error
    with (jvm_dir / ".fetch-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second fetch waits, and then finds the jars
        with contextlib.suppress(Refused):
            check(part, jvm_dir)
            return False
        with tempfile.TemporaryDirectory(prefix=f"{part}-", dir=jvm_dir) as fresh:
            folder = Path(fresh, part)
            folder.mkdir()
            if source is None:
                _retrieve(part, Path(fresh), jvm_dir)
            else:
                _copy(part, source, folder)
            check(part, Path(fresh))
            shutil.rmtree(jvm_dir / part, ignore_errors=True)
            folder.rename(jvm_dir / part)
    return True


def find_java() -> str | None:
    """Return the `java` of `JAVA_HOME`, else the first on PATH."""
    named = os.environ.get("JAVA_HOME")
    return str(Path(named, "bin", "java")) if named else shutil.which("java")


def java() -> str:
    """Return the `java` that is used; raises `Refused` if it is missing or older than 17."""
    need, executable = f"Java {_MIN_JAVA} or later is needed (a JRE is enough)", find_java()
    if executable is None:
        raise Refused(f"{need}, and no java was found on PATH; install one, or set JAVA_HOME")
    try:
        result = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{need}; {executable} does not run ({error}); install one, or set JAVA_HOME") from error
    version = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    if version is None or int(version[1]) < _MIN_JAVA:
        raise Refused(
            f"{need}; {executable} is version {version[1] if version else 'unknown'}; set JAVA_HOME to a newer one"
        )
    return executable


# Resolving from POMs takes four times as long as the jars themselves, and every jar is known; SHA-256 replaces SHA-1.
_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="brew" module="{part}"/>
  <configurations><conf name="{part}"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


def _retrieve(part: Part, fresh: Path, jvm_dir: Path) -> None:
    """Fetch what the lock file lists, without resolving anything."""
    settings, module = fresh / "ivysettings.xml", fresh / "ivy.xml"
    settings.write_text(_SETTINGS)
    module.write_text(_MODULE.format(part=part, dependencies="".join(map(_dependency, locked(part)))))
    pattern = f"{fresh}/[conf]/[artifact]-[revision].[ext]"
    run_ivy(part, jvm_dir, ("-settings", str(settings), "-ivy", str(module)), pattern)


def _dependency(jar: Jar) -> str:
    classifier = f' m:classifier="{jar.classifier}"' if jar.classifier else ""
    artifact = f'<artifact name="{jar.module}" type="{jar.ext}" ext="{jar.ext}"{classifier}/>'
    whose = f'org="{jar.organisation}" name="{jar.module}" rev="{jar.revision}"'
    return f'<dependency {whose} transitive="false" conf="{jar.part}->default">{artifact}</dependency>'


def run_ivy(part: Part, jvm_dir: Path, files: Sequence[str], pattern: str) -> None:
    """Retrieve ``part`` with pyspark's Ivy; ``files``: its settings and module; ``jvm_dir`` gets its log."""
    pyspark = importlib.util.find_spec("pyspark")
    ivy = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not ivy:
        raise Refused("Ivy, which pyspark contains, is not installed; install pyspark")
    command = [java(), "-cp", str(ivy[0]), "org.apache.ivy.Main", *files, "-cache", str(jvm_dir / "cache")]
    command += ["-confs", part, "-retrieve", pattern, "-types", "jar", "bundle", "tar.gz"]
    log = jvm_dir / f"ivy-{part}.log"
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_FETCH_S, check=False
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise Refused(
                f"the jars were not fetched within {_FETCH_S:g} s (Ivy's log is {log}); run it again"
            ) from error
    if code == 0:
        shutil.rmtree(jvm_dir / "cache", ignore_errors=True)  # only needed to continue after a failure
    else:
        last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise Refused(
            f"the jars could not be fetched (Ivy's whole log is {log}); run it again, or copy them from another "
            f"machine and set --from to their directory\n{last_lines}"
        )


def _copy(part: Part, source: Path, folder: Path) -> None:
    """Copy the listed jars from ``source``, or from its folder ``part``."""
    root = source / part if (source / part).is_dir() else source
    for name in checksums(part):
        if (root / name).is_file():
            shutil.copyfile(root / name, folder / name)


def setup_command(
    default_part: Part, text: str, afterwards: Callable[[Path], None], versions: Mapping[str, Part] | None = None
) -> click.Command:
    """Return the `setup` command: fetch ``default_part`` or one of ``versions``, then call ``afterwards``."""

    @click.command("setup", help=text)
    @click.option(
        "--jvm-dir",
        envvar=VARIABLE,
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory for the jars.  [default: a checkout's .jvm, else a directory in the user's cache]",
    )
    @click.option(
        "--from",
        "source",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Copy the jars from this directory instead of a Maven repository; checksums are still verified.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
    def command(jvm_dir: Path | None, source: Path | None, kafka: str | None = None, *, as_json: bool) -> None:
        part = versions[kafka] if versions and kafka else default_part
        began = time.monotonic()
        folder = home(jvm_dir).absolute()
        if not as_json:
            click.echo(f"jars of {part} into {folder / part}", err=True)
        fetched = fetch(part, folder, source)
        afterwards(folder)
        fetched_jars = jars(part, folder)
        size = sum(jar.stat().st_size for jar in fetched_jars)
        report = {
            "part": part.value,
            "directory": str(folder),
            "jars": [jar.name for jar in fetched_jars],
            "bytes": size,
            "fetched": fetched,
            "seconds": round(time.monotonic() - began, 1),
        }
        if as_json:
            click.echo(json.dumps(report, indent=2))
            return
        how = f"fetched and checked in {report['seconds']} s" if fetched else "already there, checked"
        click.echo(f"{len(fetched_jars)} jars, {size / 1e6:.1f} MB, {how}; {folder / part}")

    if versions:
        choice = click.option(
            "--kafka",
            type=click.Choice(list(versions)),
            help=f"Kafka version, for `sandbox up --kafka`.  [default: {next(iter(versions))}]",
        )
        return choice(command)
    return command
