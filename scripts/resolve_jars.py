#!/usr/bin/env python3
"""Resolve the roots of brew/jvm/ivy.xml, after a change, and write brew/jvm/jars.lock: scripts/resolve_jars.py"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from brew.jvm import dependencies
from brew.jvm.dependencies import Part, sha256

LAYOUT = "[conf]/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
# What the roots' metadata does not tell of a file that is no jar.
KINDS = {"apicurio-registry-app": ("tar.gz", "all")}


def resolved(part: Part, folder: Path) -> list[str]:
    dependencies.run_ivy(part, folder, ("-ivy", str(dependencies.IVY)), f"{folder}/{LAYOUT}")
    found = []
    for file in sorted((folder / part).rglob("*.*"), key=lambda file: file.name):
        if file.is_file():
            organisation, module, revision, _ = file.relative_to(folder / part).parts
            found.append(" ".join((sha256(file), part, organisation, module, revision, *KINDS.get(module, ()))))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for part in Part for line in resolved(part, Path(folder))]
    dependencies.LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
