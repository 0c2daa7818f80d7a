"""
pyspark's daemon, whose Python workers import the installed pyspark instead of Spark's copy of it in a zip file.

Spark puts its zip files first on the path of Python workers. Python keeps no bytecode for modules in a zip file, so the
daemon and each worker compile what they import of pyspark. Each worker also reads the directories of all archives on
the path again (40 ms, most of it for a jar without Python modules). With two workers, this saves 1.2 of 3.0 s of
processor time (2026-11-28).

To use it in a session of your own, set `spark.python.daemon.module` to `brew.spark.daemon`. The workers' Python must
find brew without Spark's help. If it does not find pyspark, the zip files are used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path


def without_copies(path: Sequence[str]) -> list[str]:
    """Return an import path without files of the installed pyspark: its zip files, and a jar without Python modules."""
    rest = [entry for entry in path if not entry.endswith((".zip", ".jar"))]
    found, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if found is None or found.origin is None or py4j is None:
        return list(path)
    package = Path(found.origin).resolve().parent
    return [entry for entry in path if package not in Path(entry).resolve().parents]


if __name__ == "__main__":
    sys.path[:] = without_copies(sys.path)
    sys.path_importer_cache.clear()
    from pyspark.daemon import manager

    manager()
