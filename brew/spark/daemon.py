"""
pyspark's daemon, whose Python workers import the installed pyspark instead of Spark's copy of it in a zip file.

Spark's launcher (spark-submit, or a session from `SparkSession.builder`) puts zip files first on the workers' path.
Python keeps no bytecode for modules in a zip file, so the daemon and each worker compile what they import of pyspark;
each also reads the directories of all archives on the path again. Without them, two workers take 1.8 s of processor
time to start, and 3.0 s with them (2026-11-28). Runs whose JVM brew starts itself have no such files on the path.

Set `spark.python.daemon.module` to `brew.spark.daemon` to use it. The workers' Python must find brew without Spark's
help. If it does not find pyspark, the zip files are used.
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
    # Tasks may bring another copy of brew.
    for name in [name for name in sys.modules if name.partition(".")[0] == "brew"]:
        del sys.modules[name]
    from pyspark.daemon import manager

    manager()
