"""Looks over the JSON parsers' shoulders in the program under test: which documents were really parsed?"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from proof.campaign.programs import ROOT, Programs

_SIZE = 16
_SUFFIX = ".parsed"


def digest(document: bytes) -> bytes:
    """What is kept of a document: 16 bytes."""
    return hashlib.blake2b(document, digest_size=_SIZE).digest()


@contextlib.contextmanager
def watching(programs: Programs, folder: Path) -> Iterator[None]:
    """A block: every Python process that is started in it writes down what it parses, and so do its children."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"from {__name__} import watch\nwatch({str(folder)!r})\n")
    before = programs.environment
    programs.environment = {**before, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    try:
        yield
    finally:
        programs.environment = before


def parsed(folder: Path) -> set[bytes]:
    """The digests of all documents that were parsed, in whichever process."""
    told = [file.read_bytes() for file in folder.glob(f"*{_SUFFIX}")]
    return {one[at : at + _SIZE] for one in told for at in range(0, len(one), _SIZE)}


def watch(folder: str) -> None:
    """
    From now on each document is written down before a parser gets it; called as Python starts.

    One write for each, past all buffers: what a killed process parsed is known, too.
    """

    @functools.cache
    def file(pid: int) -> int:  # a process may fork
        return os.open(Path(folder) / f"{pid}{_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watched(loads: Callable[..., Any]) -> Callable[..., Any]:
        def told(document: Any, **options: Any) -> Any:
            text = document.encode("utf-8", "surrogatepass") if isinstance(document, str) else bytes(document)
            os.write(file(os.getpid()), digest(text))
            return loads(document, **options)

        return told

    orjson.loads, json.loads = watched(orjson.loads), watched(json.loads)
