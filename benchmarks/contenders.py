"""Who runs: our pipeline and Spark's own sink, each as a command line over the same topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ground import ROOT

from pipeline.session import spark_conf
from pipeline.settings import SparkSettings

JVM_DIR = Path(os.environ.get("BREW_JVM_DIR", ROOT / ".jvm"))
_C1_ONLY = "-XX:TieredStopAtLevel=1"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run reads and writes."""

    bootstrap: str
    input: str
    output: str
    dead_letter: str
    group: str
    home: Path


@dataclass(frozen=True, slots=True)
class Setup:
    """What the caller of the benchmark chose for all contenders, and for ours alone."""

    master: str = "local[2]"
    conf: Sequence[str] = ()
    pipeline_options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, what it is in one sentence, and its command line."""

    name: str
    what: str
    ours: bool
    command: Callable[[Place, Setup], list[str]]


def _pipeline(place: Place, setup: Setup, extra: Sequence[str] = ()) -> list[str]:
    return [
        *(sys.executable, "-m", "pipeline", "run", "--progress", "json"),
        *("--bootstrap", place.bootstrap, "--input", place.input, "--output", place.output),
        *("--dead-letter", place.dead_letter, "--group", place.group),
        *("--master", setup.master, "--jvm-dir", str(JVM_DIR)),
        *_confs([*extra, *setup.conf]),
        *setup.pipeline_options,
    ]


def _sink(place: Place, setup: Setup, json: str = "parse", extra: Sequence[str] = ()) -> list[str]:
    return [
        *(sys.executable, str(Path(__file__).with_name("spark_sink.py"))),
        *("--bootstrap", place.bootstrap, "--input", place.input, "--output", place.output),
        *("--checkpoint", str(place.home / "checkpoint"), "--json", json),
        *("--master", setup.master, "--jvm-dir", str(JVM_DIR)),
        *_confs([*extra, *setup.conf]),
    ]


def _confs(pairs: Sequence[str]) -> list[str]:
    return [word for pair in pairs for word in ("--conf", pair)]


def other_compiler(setup: Setup, options: str | None = None) -> str:
    """A run's Java options (ours, unless given) with the choice of JIT compilers turned round: C1 alone, or all."""
    given = spark_conf(SparkSettings(setup.master, str(JVM_DIR)))[_JAVA_OPTIONS] if options is None else options
    words = given.split()
    turned = [word for word in words if word != _C1_ONLY] if _C1_ONLY in words else [*words, _C1_ONLY]
    return f"{_JAVA_OPTIONS}={' '.join(turned)}"


PIPELINE = Contender("pipeline", "ours, exactly once", True, _pipeline)
SINK = Contender("spark-sink", "Spark's Kafka sink, at least once, from_json and to_json", False, _sink)

CONTENDERS = {
    contender.name: contender
    for contender in (
        PIPELINE,
        SINK,
        Contender(
            "pipeline-jit",
            "ours with the other choice of JIT compilers",
            True,
            lambda place, setup: _pipeline(place, setup, [other_compiler(setup)]),
        ),
        Contender(
            "spark-sink-jit",
            "the same sink with the other choice of JIT compilers",
            False,
            lambda place, setup: _sink(place, setup, extra=[other_compiler(setup)]),
        ),
        Contender(
            "spark-sink-concat",
            "a sink that glues the new fields on as text and trusts its input",
            False,
            lambda place, setup: _sink(place, setup, json="concat"),
        ),
    )
}
DEFAULT = ("pipeline", "spark-sink", "spark-sink-jit")
