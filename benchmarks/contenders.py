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


def _sink(place: Place, setup: Setup, json: str, extra: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, str(Path(__file__).with_name("spark_sink.py"))),
        *("--bootstrap", place.bootstrap, "--input", place.input, "--output", place.output),
        *("--checkpoint", str(place.home / "checkpoint"), "--json", json),
        *("--master", setup.master, "--jvm-dir", str(JVM_DIR)),
        *_confs([*extra, *setup.conf]),
    ]


def _confs(pairs: Sequence[str]) -> list[str]:
    return [word for pair in pairs for word in ("--conf", pair)]


def compilers(setup: Setup, *, c1_only: bool, options: str | None = None) -> str:
    """Java options (a run's own, unless given) with C1 as the only JIT compiler, or with all of them."""
    given = spark_conf(SparkSettings(setup.master, str(JVM_DIR)))[_JAVA_OPTIONS] if options is None else options
    words = [word for word in given.split() if word != _C1_ONLY]
    return f"{_JAVA_OPTIONS}={' '.join([*words, _C1_ONLY] if c1_only else words)}"


def _pipeline_with(*, c1_only: bool) -> Callable[[Place, Setup], list[str]]:
    return lambda place, setup: _pipeline(place, setup, [compilers(setup, c1_only=c1_only)])


def _sink_with(*, c1_only: bool, json: str = "parse") -> Callable[[Place, Setup], list[str]]:
    return lambda place, setup: _sink(place, setup, json, [compilers(setup, c1_only=c1_only)])


PIPELINE = Contender("pipeline", "ours, exactly once", ours=True, command=_pipeline)
_SINK = "Spark's Kafka sink, at least once, from_json and to_json"

CONTENDERS = {
    contender.name: contender
    for contender in (
        PIPELINE,
        Contender("pipeline-jit", "ours, all JIT compilers", ours=True, command=_pipeline_with(c1_only=False)),
        Contender("pipeline-c1", "ours, C1 alone", ours=True, command=_pipeline_with(c1_only=True)),
        Contender("spark-sink", f"{_SINK}, all JIT compilers", ours=False, command=_sink_with(c1_only=False)),
        Contender("spark-sink-c1", f"{_SINK}, C1 alone", ours=False, command=_sink_with(c1_only=True)),
        Contender(
            "spark-sink-concat",
            "a sink that glues the new fields on as text and trusts its input, all JIT compilers",
            ours=False,
            command=_sink_with(c1_only=False, json="concat"),
        ),
    )
}
DEFAULT = ("pipeline", "spark-sink", "spark-sink-c1")
