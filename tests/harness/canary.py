"""A planted password, and the search for it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

CANARY = 'canary-"\\-5e1f09c7d2'
QUOTED = quote(CANARY, safe="")
"""The password, quoted for a URL."""
PARTS = ("canary-", "5e1f09c7d2")
"""The parts to search for: escaping may come between."""


def leaks(*texts: str) -> list[str]:
    """Return the parts that occur in any of the texts."""
    return [part for part in PARTS for text in texts if part in text]


def leaking_files(folder: Path) -> list[Path]:
    """Return the files of a folder, at any depth, that contain a part."""
    return [file for file in folder.rglob("*") if file.is_file() and leaks(file.read_bytes().decode("latin-1"))]
