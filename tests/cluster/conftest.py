"""Fixtures of `make test-cluster`: Spark's own cluster, whose executors have a Python without our packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from harness.pipeline import ROOT, stage  # noqa: F401 - a fixture
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandbox.spark import Settings, SparkCluster


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has all that we require, and nothing of ours."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    # A path in a .pth file adds that folder alone: the .pth file in it, by which we find the repository, is not read.
    site = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    next(folder.glob("lib/python3*/site-packages")).joinpath("borrowed.pth").write_text(f"{site}\n")
    python = folder / "bin/python"
    command = [
        str(python),
        "-c",
        "import confluent_kafka, pyarrow, pandas\ntry:\n import brew\nexcept ImportError: print('bare')",
    ]
    check = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=60, check=True)
    assert check.stdout == "bare\n"
    return python


@pytest.fixture(scope="module")
def cluster(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and three workers of one core each, each worker on an address of its own."""
    settings = Settings(cores=1, memory_mb=1024, python=str(bare_python))
    with SparkCluster.start(tmp_path_factory.mktemp("cluster"), workers=3, settings=settings) as found:
        yield found


@pytest.fixture(scope="session")
def installed_wheel(wheel: Path, bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`brew-pipeline` of an environment that has the wheel; what it requires is borrowed from the tests' own."""
    folder = tmp_path_factory.mktemp("wheel")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet"]
    # From a checkout on PYTHONPATH pip would take what an editable install left there for the wheel.
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run(words, env=plain, cwd=folder, check=True)
    borrowed = next(bare_python.parents[1].glob("lib/python3*/site-packages/borrowed.pth"))
    next(venv.glob("lib/python3*/site-packages")).joinpath("borrowed.pth").write_text(borrowed.read_text())
    for script in ("spark-submit", "find-spark-home", "find_spark_home.py"):  # with pyspark, pip puts them there
        (venv / "bin" / script).symlink_to(Path(sys.executable).with_name(script))
    return venv / "bin/brew-pipeline"


@pytest.fixture(scope="session")
def packed_environment(installed_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """
    Spark's settings for an archive as `tar` makes it of an environment that pip filled, without pyspark: that is there.

    Its interpreter is a symbolic link to one that each worker has at the same place.
    """
    file, venv = tmp_path_factory.mktemp("packed") / "environment.tar.gz", installed_wheel.parents[1]
    (site,) = venv.glob("lib/python3*/site-packages")
    with tarfile.open(file, "w:gz", compresslevel=1) as archive:
        archive.add(venv, ".", filter=lambda entry: None if entry.name.endswith("borrowed.pth") else entry)
        for distribution in sorted(required("brew", {"pyspark"}) - {"pyspark"}):
            for path in metadata.files(distribution) or ():
                if ".." not in path.parts:
                    archive.add(path.locate(), str(site.relative_to(venv) / path))
    return {
        "spark.archives": f"{file}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": str(installed_wheel.with_name("python")),
    }


def required(name: str, known: set[str]) -> set[str]:
    """Names of the distributions that one requires, theirs included, and ``known`` ones, whose own are not asked."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        own = canonicalize_name(requirement.name)
        if own not in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            known |= required(own, known | {own})
    return known
