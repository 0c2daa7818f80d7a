"""The jars that pip does not bring: what they are, where they are, and how they are fetched and checked."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from brew.errors import Refused

VARIABLE = "BREW_JVM_DIR"
VERSIONS = "spark-4.2.0-kafka-4.1.1"
"""The folder's name in a cache: another version of this package may need others beside them."""

IVY = Path(__file__).with_name("ivy.xml")
SUMS = Path(__file__).with_name("sha256sums")
_CHECKOUT = Path(__file__).resolve().parents[2]
_BLOCK_BYTES = 1 << 20


class Part(enum.StrEnum):
    """A set of jars, and the folder and Ivy configuration of that name."""

    SPARK = "spark"
    KAFKA = "kafka"
    KAFKA_3_9 = "kafka-3.9.2"
    KAFKA_3_3 = "kafka-3.3.2"
    YARN = "yarn"
    REGISTRY = "registry"


KAFKAS: Mapping[str, Part] = {"4.1.1": Part.KAFKA, "3.9.2": Part.KAFKA_3_9, "3.3.2": Part.KAFKA_3_3}
"""The brokers that there are, by version; the first is the one that everybody gets who names none."""

COMMANDS: Mapping[Part, str] = {
    Part.SPARK: "brew-pipeline setup",
    Part.KAFKA: "brew-sandbox setup",
    Part.KAFKA_3_9: "brew-sandbox setup --kafka 3.9.2",
    Part.KAFKA_3_3: "brew-sandbox setup --kafka 3.3.2",
    Part.YARN: "brew-sandbox setup-yarn",
    Part.REGISTRY: "brew-sandbox stores up registry",
}
"""What fetches a part where the package is installed."""


def home(given: str | os.PathLike[str] | None = None) -> Path:
    """
    Where the JVM parts are, or will be put.

    ``given``, else `BREW_JVM_DIR`, else a checkout's own `.jvm`, else a folder of this version in the user's cache.
    """
    if chosen := given or os.environ.get(VARIABLE):
        return Path(chosen)
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT / ".jvm"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "brew" / VERSIONS


def wanted(part: Part) -> dict[str, str]:
    """File name -> SHA-256 of each jar of ``part``."""
    pairs = (line.split() for line in SUMS.read_text().splitlines())
    found = {Path(name): digest for digest, name in pairs}
    return {file.name: digest for file, digest in found.items() if file.parent.name == part}


def jars(part: Part, place: Path) -> list[Path]:
    """The jars (the registry: an archive) of ``part`` below ``place``, sorted; empty where they were never fetched."""
    return _files(place / part)


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.jar"), *folder.glob("*.tar.gz")])


def check(part: Part, folder: Path) -> None:
    """
    Compare ``folder`` with the checksums.

    Raises:
        Refused: a jar is missing, too many, or not the one that this version was built and tested with.
    """
    expected = wanted(part)
    there = {file.name for file in _files(folder)}
    if missing := sorted(expected.keys() - there):
        raise Refused(
            f"{missing[0]} is not in {folder} ({len(missing)} of {len(expected)} jars missing); {_again(part)}"
        )
    if foreign := sorted(there - expected.keys()):
        raise Refused(f"{folder / foreign[0]} is no jar of this version; remove it, or {_again(part)}")
    for name, digest in expected.items():
        if (found := sha256(folder / name)) != digest:
            raise Refused(
                f"{folder / name} has the SHA-256 {found[:16]}..., this version needs {digest[:16]}...: "
                f"it is damaged, or another jar of that name; remove it and {_again(part)}"
            )


def sha256(file: Path) -> str:
    """The file's checksum in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def absent(part: Part, place: Path) -> Refused:
    """The refusal of a program that finds no jars."""
    return Refused(
        f"no jars in {place / part}: `{COMMANDS[part]}` (in a checkout `{_in_checkout(part)}`) puts them there, "
        f"and {VARIABLE} names another place"
    )


def _again(part: Part) -> str:
    return f"run `{COMMANDS[part]}` (in a checkout `{_in_checkout(part)}`) again"


def _in_checkout(part: Part) -> str:
    """`make setup` fetches what every command needs; a checkout's other brokers come with the sandbox's own command."""
    return (
        "make setup"
        if part in {Part.SPARK, Part.KAFKA}
        else COMMANDS[part].replace("brew-sandbox", "python -m sandbox")
    )


_OLDEST_JAVA = 17
_JAVA_S = 20.0
_FETCH_S = 900.0
_LAST_LINES = 12


def fetch(part: Part, place: Path, source: Path | None = None) -> bool:
    """
    Put the jars of ``part`` into a folder of that name in ``place``; True when they were not there yet.

    ``source``: a folder that holds them, for machines without a network; else Ivy asks its Maven repository.

    Raises:
        Refused: no Java, no answer, no room, or jars that are not those of this version.
    """
    _make(place)
    with _exclusive_lock(place):
        if _is_there(part, place / part):
            return False
        with tempfile.TemporaryDirectory(prefix=f"{part}-", dir=place) as fresh:
            folder = Path(fresh, part)
            folder.mkdir()
            if source is None:
                _retrieve(part, Path(fresh), place)
            else:
                _copy(part, source, folder)
            check(part, folder)
            shutil.rmtree(place / part, ignore_errors=True)
            folder.rename(place / part)
    return True


def java() -> str:
    """
    The `java` that our JVMs run on: that of `JAVA_HOME`, else the first of PATH.

    Raises:
        Refused: there is none, or it is older than 17.
    """
    need = f"Java {_OLDEST_JAVA} or later is needed (a JRE is enough)"
    named = os.environ.get("JAVA_HOME")
    found = str(Path(named, "bin", "java")) if named else shutil.which("java")
    if found is None:
        raise Refused(f"{need}, and no java was found on PATH; install one, or set JAVA_HOME")
    try:
        told = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{need}; {found} does not run ({error}): install one, or set JAVA_HOME") from error
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise Refused(
            f"{need}; {found} is version {version[1] if version else 'unknown'}: set JAVA_HOME to a newer one"
        )
    return found


def _is_there(part: Part, folder: Path) -> bool:
    try:
        check(part, folder)
    except Refused:
        return False
    return True


def _make(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{place} can't be made ({error.strerror}); name another place with --jvm-dir") from error


@contextmanager
def _exclusive_lock(place: Path) -> Iterator[None]:
    """Two at once: the second waits, and then finds all done."""
    with (place / ".fetch-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve(part: Part, fresh: Path, place: Path) -> None:
    pyspark = importlib.util.find_spec("pyspark")
    ivy = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not ivy:
        raise Refused("pyspark's Ivy is not here; install pyspark (it is one of this package's requirements)")
    pattern = f"{fresh}/[conf]/[artifact]-[revision].[ext]"
    command = [java(), "-cp", str(ivy[0]), "org.apache.ivy.Main", "-ivy", str(IVY), "-cache", str(place / "cache")]
    command += ["-confs", part, "-retrieve", pattern, "-types", "jar", "bundle", "tar.gz"]
    log = place / f"ivy-{part}.log"
    with log.open("w") as words:
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, timeout=_FETCH_S, check=False
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise Refused(f"the jars did not come within {_FETCH_S:g} s; Ivy's log is {log}; run it again") from error
    if code == 0:
        shutil.rmtree(place / "cache", ignore_errors=True)  # only of use to go on after a failure
    else:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        raise Refused(
            f"the jars could not be fetched (Ivy's whole log is {log}); run it again, or copy them from a machine "
            f"with a network and give --from\n{said}"
        )


def _copy(part: Part, source: Path, folder: Path) -> None:
    """Of ``source``, or of its folder ``part``, what the list names."""
    root = source / part if (source / part).is_dir() else source
    for name in wanted(part):
        if (root / name).is_file():
            shutil.copyfile(root / name, folder / name)


Afterwards = Callable[[Path], None]


def setup_command(
    usual: Part, text: str, afterwards: Afterwards, versions: Mapping[str, Part] | None = None
) -> click.Command:
    """A command that puts ``usual``, or one of ``versions``, in its place, and then does what else belongs there."""

    @click.command("setup", help=text)
    @click.option(
        "--jvm-dir",
        envvar=VARIABLE,
        type=click.Path(path_type=Path, file_okay=False),
        help="Where to put the jars.  [default: a checkout's .jvm, else a folder in the user's cache]",
    )
    @click.option(
        "--from",
        "source",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Take the jars from this folder instead of a Maven repository; their checksums are compared all the same.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
    def command(jvm_dir: Path | None, source: Path | None, kafka: str | None = None, *, as_json: bool) -> None:
        part = versions[kafka] if versions and kafka else usual
        begun = time.monotonic()
        place = home(jvm_dir).absolute()
        if not as_json:
            click.echo(f"jars of {part} into {place / part}", err=True)
        fetched = fetch(part, place, source)
        afterwards(place)
        found = jars(part, place)
        size = sum(jar.stat().st_size for jar in found)
        told = {
            "part": part.value,
            "directory": str(place),
            "jars": [jar.name for jar in found],
            "bytes": size,
            "fetched": fetched,
            "seconds": round(time.monotonic() - begun, 1),
        }
        if as_json:
            click.echo(json.dumps(told, indent=2))
            return
        how = f"fetched and checked in {told['seconds']} s" if fetched else "there already, checked"
        click.echo(f"{len(found)} jars, {size / 1e6:.1f} MB, {how}; {place / part}")

    if versions:
        choice = click.option("--kafka", type=click.Choice(list(versions)), help="Version, for `sandbox up --kafka`.")
        return choice(command)
    return command
