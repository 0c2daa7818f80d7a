"""Fetch a part with the Ivy that pyspark ships, or take it from a folder; either way checked before it is used."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import Refused
from protocol.jvm.parts import IVY, Part, check, wanted

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
    with _alone(place):
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
def _alone(place: Path) -> Iterator[None]:
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
    command += ["-confs", part, "-retrieve", pattern, "-types", "jar", "bundle"]
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
