"""Who runs: our pipeline and Spark's own sink, each as a command line over the same topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ground import ROOT

from pipeline.session import COLLECTOR, LONG_RUN, SHORT_RUN, spark_conf
from pipeline.settings import SparkSettings

JVM_DIR = Path(os.environ.get("BREW_JVM_DIR", ROOT / ".jvm"))
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


def _pipeline(place: Place, setup: Setup) -> list[str]:
    return [
        *(sys.executable, "-m", "pipeline", "run", "--progress", "json"),
        *("--bootstrap", place.bootstrap, "--input", place.input, "--output", place.output),
        *("--dead-letter", place.dead_letter, "--group", place.group),
        *("--master", setup.master, "--jvm-dir", str(JVM_DIR)),
        *_confs(setup.conf),
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


def java_options(setup: Setup, *, tuned: bool, given: str | None = None) -> str:
    """Java options as a long run of ours has them (``tuned``), or without our choice of compilers and collector."""
    long = spark_conf(SparkSettings(setup.master, str(JVM_DIR)), short=False)[_JAVA_OPTIONS] if given is None else given
    words = [word for word in long.split() if tuned or word not in {COLLECTOR, *SHORT_RUN, *LONG_RUN}]
    return f"{_JAVA_OPTIONS}={' '.join(words)}"


def _sink_with(*, tuned: bool, json: str = "parse") -> Callable[[Place, Setup], list[str]]:
    return lambda place, setup: _sink(place, setup, json, [java_options(setup, tuned=tuned)])


PIPELINE = Contender("pipeline", "ours, exactly once", ours=True, command=_pipeline)
_SINK = "Spark's Kafka sink, at least once, from_json and to_json"

CONTENDERS = {
    contender.name: contender
    for contender in (
        PIPELINE,
        Contender("spark-sink", f"{_SINK}, the JVM as Spark starts it", ours=False, command=_sink_with(tuned=False)),
        Contender("spark-sink-tuned", f"{_SINK}, our JVM options", ours=False, command=_sink_with(tuned=True)),
        Contender(
            "spark-sink-concat",
            "a sink that glues the new fields on as text and trusts its input, our JVM options",
            ours=False,
            command=_sink_with(tuned=True, json="concat"),
        ),
    )
}
DEFAULT = ("pipeline", "spark-sink", "spark-sink-tuned")
