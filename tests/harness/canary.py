"""A password that is planted, and how it is looked for."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

CANARY = 'canary-"\\-5e1f09c7d2'
QUOTED = quote(CANARY, safe="")
"""As it stands in an address."""
PARTS = ("canary-", "5e1f09c7d2")
"""What is looked for: escaping may come between."""


def found(*texts: str) -> list[str]:
    """Parts of it that stand in any of the texts."""
    return [part for part in PARTS for text in texts if part in text]


def in_files(folder: Path) -> list[Path]:
    """Files of a folder, at any depth, that hold a part of it."""
    return [file for file in folder.rglob("*") if file.is_file() and found(file.read_bytes().decode("latin-1"))]
