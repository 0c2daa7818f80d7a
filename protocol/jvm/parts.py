"""Which jars there have to be, by checksum, and the directory that holds them."""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from protocol.errors import Refused

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


KAFKAS: Mapping[str, Part] = {"4.1.1": Part.KAFKA, "3.9.2": Part.KAFKA_3_9, "3.3.2": Part.KAFKA_3_3}
"""The brokers that there are, by version; the first is the one that everybody gets who names none."""

COMMANDS: Mapping[Part, str] = {
    Part.SPARK: "brew-pipeline setup",
    Part.KAFKA: "brew-sandbox setup",
    Part.KAFKA_3_9: "brew-sandbox setup --kafka 3.9.2",
    Part.KAFKA_3_3: "brew-sandbox setup --kafka 3.3.2",
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
    """The jars of ``part`` below ``place``, in a fixed order; empty where they were never fetched."""
    return sorted((place / part).glob("*.jar"))


def check(part: Part, folder: Path) -> None:
    """
    Compare ``folder`` with the checksums.

    Raises:
        Refused: a jar is missing, too many, or not the one that this version was built and tested with.
    """
    expected = wanted(part)
    there = {file.name for file in folder.glob("*.jar")}
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
