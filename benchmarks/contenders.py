"""The contenders: our pipeline with each reader, Spark's own sink, and `peers/`; command lines on the same topics."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from environment import FLINK, FRANZ, JVM_DIR, PEERS, QUIX, ROOT, STREAMS

from brew.errors import Refused
from brew.settings import Compilers, SparkSettings
from brew.spark.session import COLLECTOR, COMPILERS, spark_conf
from proof.findings import Name

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True)
class RunTopics:
    bootstrap: str
    input: str
    output: str
    dead_letter: str
    group: str
    home: Path


Command = Callable[[RunTopics, str, bool], list[str]]
"""(topics, Spark master, follow) -> the command line; with ``follow`` it runs until SIGTERM."""
MASTER = "local[2]"
POSITION, ORDER, TRANSACTIONS = {Name.TORN: "positions"}, {Name.NONMONOTONIC: "order"}, {Name.TORN: "transactions"}
"""What the proof finds without these properties, and what they are called."""


@dataclass(frozen=True, slots=True)
class Contender:
    """
    A name, a one-sentence description, and a command line.

    ``endless``: it never ends by itself; the benchmark stops it once the group has reached the input's end.
    ``exactly_once``: it writes in transactions and keeps its position in them. ``needs``: what must be built first.
    ``without``: the properties it does not promise: POSITION if its transactions contain only records, and its position
    is stored elsewhere and then in the group; ORDER if its query shuffles; TRANSACTIONS if it writes without any.
    ``stands_by``: a second instance waits, and takes over when the first is killed.
    """

    name: str
    what: str
    command: Command
    ours: bool = False
    endless: bool = False
    exactly_once: bool = True
    needs: Path | None = None
    without: Mapping[Name, str] = field(default_factory=dict)
    stands_by: bool = False


def _topics(topics: RunTopics) -> list[str]:
    return [
        *("--bootstrap", topics.bootstrap, "--input", topics.input, "--output", topics.output),
        *("--dead-letter", topics.dead_letter, "--group", topics.group),
    ]


def _pipeline(*words: str, program: Sequence[str] = ("-m", "pipeline", "run"), spark: bool = True) -> Command:
    def command(topics: RunTopics, master: str, follow: bool) -> list[str]:
        return [
            *(sys.executable, *program, *words, "--progress", "json"),
            *_topics(topics),
            *(["--master", master, "--jvm-dir", str(JVM_DIR)] if spark else ["--master", "none"]),
            *(["--follow"] if follow else []),
        ]

    return command


def _sink(*, tuned: bool, query: str = "enrich", writers: str = "spark") -> Command:
    def command(topics: RunTopics, master: str, follow: bool) -> list[str]:
        long_run = spark_conf(SparkSettings(master, str(JVM_DIR)), Compilers.SECOND_LATE)
        java = java_options(long_run[_JAVA_OPTIONS], tuned=tuned)
        return [
            *(sys.executable, str(ROOT / "scripts/sink_query.py"), "--query", query, "--writers", writers),
            *("--bootstrap", topics.bootstrap, "--input", topics.input, "--output", topics.output),
            *("--name", topics.output, "--checkpoint", str(topics.home / "checkpoint"), "--master", master),
            # One micro-batch for all of the input: the best case for the rate. Spark's own number of partitions.
            *("--most", "0", "--transaction-timeout", "600", "--conf", "spark.sql.shuffle.partitions=200"),
            # Options of the driver's JVM need Spark's launcher, which puts zip files on the workers' path.
            *("--conf", f"{_JAVA_OPTIONS}={java}", "--conf", "spark.python.daemon.module=brew.spark.daemon"),
            *(["--follow"] if follow else []),
        ]

    return command


def java_options(given: str, *, tuned: bool) -> str:
    """Return a run's Java options unchanged (``tuned``), or without our choice of compilers and collector."""
    ours = {COLLECTOR, *(word for words in COMPILERS.values() for word in words)}
    return " ".join(word for word in given.split() if tuned or word not in ours)


def _peer(
    program: Sequence[object], *, static: bool, options: Callable[[RunTopics], Sequence[str]] | None = None
) -> Command:
    """Return a peer's command, which runs until SIGTERM in any case; a static member keeps its id across restarts."""

    def command(topics: RunTopics, _master: str, _follow: bool) -> list[str]:
        more = options(topics) if options else []
        return [*map(str, program), *_topics(topics), *more, *(["--instance", "bench-1"] if static else [])]

    return command


_LOOP = [sys.executable, PEERS / "loop.py"]
_JAVA = ["java", "-Xms1g", "-Xmx1g", "-jar"]


def _state(topics: RunTopics) -> list[str]:
    return ["--state-dir", str(topics.home / "state")]


def _peers(*, static: bool) -> Iterable[Contender]:
    suffix, member = ("", "a static member") if static else ("-dynamic", "a dynamic member, the default")
    for name, what, program, options, needs in (
        ("loop", "a hand-written confluent-kafka loop, exactly once, 100 ms", _LOOP, None, None),
        ("streams", "Kafka Streams exactly_once_v2 in Java, 100 ms, 2 threads", [*_JAVA, STREAMS], _state, STREAMS),
        ("franz", "franz-go's GroupTransactSession in Go, exactly once, 100 ms", [FRANZ], None, FRANZ),
        ("quix", "quix-streams in Python, exactly-once, 100 ms", [QUIX, PEERS / "quix.py"], _state, QUIX),
    ):
        if name == "quix" and static:
            yield _FLINK
        command = _peer(program, static=static, options=options)
        yield Contender(f"{name}{suffix}", f"{what}, {member}", command, endless=True, needs=needs)


_FLINK = Contender(  # no dynamic one: Flink assigns partitions itself and is not a group member
    "flink",
    "Flink in Java, a checkpoint a second, two-phase-commit sink, 2 slots",
    _peer([*_JAVA, FLINK], static=False, options=_state),
    endless=True,
    without=POSITION,
    needs=FLINK,
)
_SINK = "Spark's Kafka sink, at least once, from_json and to_json"
_DIRECT = ("--reader", "direct")
_AT_LEAST_ONCE = [str(Path(__file__).with_name("at_least_once.py"))]
_ours, _unsafe = partial(Contender, ours=True), partial(Contender, exactly_once=False, without=TRANSACTIONS)
_TWO = ("--stand-by", "--claim-interval", "0.5")
_without_transactions = partial(_pipeline, *_DIRECT, program=_AT_LEAST_ONCE)
_CONCAT = "a sink that glues the new fields on as text and trusts its input, our JVM options"
_SHUFFLED = "the query of spark-sink-tuned, its rows shuffled by key before they are written"


def _brew_sinks() -> Iterable[Contender]:
    """Measured like Spark's own sink: the position is a batch number, not an input offset."""
    for kind, writers, what in (("one", "1", "one writer"), ("tasks", "tasks", "tasks write")):
        for suffix, name in (("", "tuned"), ("-shuffled", "shuffled")):
            text = f"our ExactlyOnceSink ({what}) with the query of spark-sink-{name}, our JVM options"
            command = _sink(tuned=True, query=f"enrich{suffix}", writers=writers)
            without = POSITION | ORDER if suffix else POSITION
            yield _unsafe(f"spark-sink-brew-{kind}{suffix}", text, command, without=without)


CONTENDERS = {
    contender.name: contender
    for contender in (
        _ours("direct", "ours, exactly once, tasks read by themselves", _pipeline(*_DIRECT)),
        _ours("pipeline", "ours, exactly once, Spark's Kafka source reads", _pipeline("--reader", "connector")),
        _ours(
            "direct-stand-by",
            "the same with a second driver that stands by, heartbeats of 0.5 s",
            _pipeline(*_DIRECT, *_TWO),
            stands_by=True,
        ),
        _ours("alone", "ours, exactly once, one process without Spark", _pipeline(*_DIRECT, spark=False)),
        _unsafe(
            "alone-at-least-once",
            "the same with its transactions taken out, offsets after output",
            _without_transactions(spark=False),
        ),
        _unsafe(
            "direct-at-least-once",
            "direct with its transactions taken out, offsets after output",
            _without_transactions(),
        ),
        _unsafe("spark-sink", f"{_SINK}, the JVM as Spark starts it", _sink(tuned=False)),
        _unsafe("spark-sink-tuned", f"{_SINK}, our JVM options", _sink(tuned=True)),
        _unsafe("spark-sink-concat", _CONCAT, _sink(tuned=True, query="enrich-concat")),
        _unsafe(
            "spark-sink-shuffled", _SHUFFLED, _sink(tuned=True, query="enrich-shuffled"), without=TRANSACTIONS | ORDER
        ),
        *_brew_sinks(),
        *_peers(static=True),
        *_peers(static=False),
    )
}
DEFAULT = ("direct", "pipeline", "spark-sink", "loop", "streams", "flink", "franz")


def require_built(names: Iterable[str]) -> None:
    """Check that everything these contenders need is present."""
    needs = {name: CONTENDERS[name].needs for name in names}
    unbuilt = [name for name, need in needs.items() if need is not None and not need.exists()]
    if unbuilt:
        raise Refused(f"{', '.join(unbuilt)}: not built; run `make bench-peers`, or name others with --contenders")
    in_java = [name for name, need in needs.items() if need in {STREAMS, FLINK}]
    if in_java and shutil.which("java") is None:
        raise Refused(
            f"{', '.join(in_java)}: no java on PATH; install Java 17 or later, or name others with --contenders"
        )
