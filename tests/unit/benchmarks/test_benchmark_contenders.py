"""Command lines of the contenders, what the benchmark makes of options, and the run without transactions."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import at_least_once
import contenders
import loop
import measure
import pytest
import run
from click.testing import CliRunner
from contenders import CONTENDERS, MASTER, RunTopics, require_built
from environment import program

import brew.attempt
import brew.driver.run
from brew.connection import Connection
from brew.errors import Refused
from brew.kafka.transaction import TransactionSettings
from brew.orders import Reason
from brew.record import Reject
from brew.settings import Limits
from pipeline.enrichment import enricher
from proof.checking.checker import MISPLACED

PLACE = RunTopics("b:1", "in", "out", "dead", "group", Path("home"))
PEERS = ("loop", "streams", "franz")
_MISPLACED = f"7 outputs {MISPLACED}, as if a topic had had fewer"


def _options(command: list[str]) -> dict[str, str]:
    return {word: command[index + 1] for index, word in enumerate(command[:-1]) if word.startswith("--")}


@pytest.mark.parametrize("name", [name for name in CONTENDERS if not name.startswith("spark-sink")])
def test_every_contender_works_on_the_same_topics(name: str) -> None:
    options = _options(CONTENDERS[name].command(PLACE, MASTER, False))
    wanted = {"--bootstrap": "b:1", "--input": "in", "--output": "out", "--dead-letter": "dead", "--group": "group"}
    assert {option: options[option] for option in wanted} == wanted


def test_our_sink_differs_from_sparks_own_in_who_writes_alone() -> None:
    sinks = {"spark": "spark-sink-tuned", "1": "spark-sink-brew-one", "tasks": "spark-sink-brew-tasks"}
    commands = [CONTENDERS[name].command(PLACE, MASTER, False) for name in sinks.values()]
    assert [_options(command)["--writers"] for command in commands] == list(sinks)
    assert len({tuple(word for word in command if word not in sinks) for command in commands}) == 1


def test_the_direct_reader_is_the_pipeline_with_another_reader() -> None:
    direct, pipeline = (CONTENDERS[name].command(PLACE, "local[3]", True) for name in ("direct", "pipeline"))
    assert (_options(direct)["--reader"], _options(pipeline)["--reader"]) == ("direct", "connector")
    assert [word for word in direct if word != "direct"] == [word for word in pipeline if word != "connector"]
    assert direct[1:4] == ["-m", "pipeline", "run"]
    assert _options(direct)["--master"] == "local[3]"
    assert direct[-1] == "--follow"
    assert "--follow" not in CONTENDERS["direct"].command(PLACE, "local[3]", False)


@pytest.mark.parametrize("name", [*PEERS, "quix"])
def test_peers_are_static_members_unless_asked_otherwise(name: str) -> None:
    """A static member is the peer's better case after a kill; the default of its library is a contender, too."""
    static = CONTENDERS[name].command(PLACE, MASTER, False)
    assert static == [*CONTENDERS[f"{name}-dynamic"].command(PLACE, MASTER, False), "--instance", "bench-1"]
    peer = CONTENDERS[name]
    assert (peer.endless, peer.exactly_once, peer.ours) == (True, True, False)


def test_flink_has_one_state_directory_for_all_starts_and_no_membership() -> None:
    """The second start after a kill finds the first one's checkpoints; Flink's readers never join the group."""
    flink = CONTENDERS["flink"]
    command = flink.command(PLACE, MASTER, False)
    assert _options(command)["--state-dir"] == str(PLACE.home / "state")
    assert "--instance" not in command
    assert "flink-dynamic" not in CONTENDERS
    assert (flink.endless, flink.exactly_once, flink.ours) == (True, True, False)


def test_the_untuned_peer_has_none_of_our_java_options_and_the_tuned_one_all() -> None:
    options = "-Dsome=thing -XX:+UseSerialGC -XX:Tier4InvocationThreshold=100000 -Xshare:auto"
    assert contenders.java_options(options, tuned=False) == "-Dsome=thing -Xshare:auto"
    assert contenders.java_options(options, tuned=True) == options


@pytest.mark.parametrize("name", ["streams", "flink"])
def test_peers_in_java_ask_for_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setattr(contenders, name.upper(), tmp_path)
    monkeypatch.setitem(CONTENDERS, name, replace(CONTENDERS[name], needs=tmp_path))
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(Refused, match=rf"^{name}: no java on PATH"):
        require_built([name])


def test_what_is_not_built_is_named_with_the_way_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("loop", "franz"):
        monkeypatch.setitem(CONTENDERS, name, replace(CONTENDERS[name], needs=tmp_path / name))
    (tmp_path / "loop").touch()
    require_built(["loop"])
    with pytest.raises(Refused, match=r"^franz: not built; run `make bench-peers`"):
        require_built(["loop", "franz"])


@pytest.mark.parametrize(
    "value",
    [
        b'{"customer_id":"c","total_cents":980,"more":[1.5,null]}',
        b'{"customer_id":"c","loyalty_tier":"old"}',
        *(b'{"customer_id":7}', b'{"customer_id":""}', b'{"customer_id":null}', b"{}", b"[]", b"{", None),
    ],
)
@pytest.mark.parametrize("key", [b"gold-1", b"tin-1", None])
def test_the_loop_enriches_as_the_pipeline_does(key: bytes | None, value: bytes | None) -> None:
    expected = enricher(Limits())(key, value)
    assert loop.enrich(key, value) == (expected.reason if isinstance(expected, Reject) else expected)


def test_the_loop_has_one_transactional_producer_and_reads_committed() -> None:
    """What makes it exactly once; the id is stable, so that a restart fences the dead run."""
    options = loop.Options("b:1", "in", "out", "dead", "group", "", 0.1, 10)
    assert loop.producer_settings(options)["transactional.id"] == "group"
    assert loop.consumer_settings(options)["isolation.level"] == "read_committed"
    assert loop.consumer_settings(options)["enable.auto.commit"] is False
    assert "group.instance.id" not in loop.consumer_settings(options)
    assert set(Reason) >= {loop.enrich(None, None)}


@pytest.mark.parametrize(("name", "rule"), [("direct", "--strict"), ("franz", "--no-strict")])
def test_every_output_is_proven_and_no_order_is_missing(monkeypatch: pytest.MonkeyPatch, name: str, rule: str) -> None:
    """A fast wrong run is no result; only ours has to use a producer epoch once."""
    called: list[str] = []

    def program(*arguments: str, **_more: object) -> str:
        called.extend(arguments)
        return '{"verdict": "proven"}'

    monkeypatch.setattr(measure, "program", program)
    assert measure.verified(None, CONTENDERS[name], PLACE, 1000) == "proven"  # type: ignore[arg-type]
    assert called[:2] == ["proof", "verify"]
    assert {rule, "--settled"} <= set(called)
    assert _options(called)["--need"] == "outputs=1000"


@pytest.mark.parametrize(
    ("name", "totals", "doubts", "what"),
    [
        ("flink", {"torn-txn": 9}, [], "positions"),
        ("flink", {"torn-txn": 9, "duplicate": 1}, [], None),
        ("flink", {"torn-txn": 9}, ["outputs: 7 of 1000"], None),
        ("flink", {"duplicate": 1}, [], None),
        ("franz", {"torn-txn": 9}, [], None),
        ("direct", {"torn-txn": 9}, [], None),
        ("direct-at-least-once", {"torn-txn": 9}, [], "transactions"),
        ("direct-at-least-once", {"torn-txn": 9, "duplicate": 1}, [], None),
        ("spark-sink-shuffled", {"nonmonotonic-output": 3, "torn-txn": 9}, [], "order and transactions"),
        ("spark-sink-shuffled", {"nonmonotonic-output": 3, "torn-txn": 9}, [_MISPLACED], "order and transactions"),
        ("spark-sink-shuffled", {"nonmonotonic-output": 3, "torn-txn": 9}, [_MISPLACED, "7 of 1000"], None),
        ("spark-sink-tuned", {"torn-txn": 9}, [_MISPLACED], None),
        ("spark-sink-shuffled", {"nonmonotonic-output": 3, "duplicate": 1}, [], None),
        ("spark-sink-tuned", {"nonmonotonic-output": 3}, [], None),
    ],
)
def test_only_what_a_contender_does_not_promise_is_forgiven(
    monkeypatch: pytest.MonkeyPatch, name: str, totals: dict[str, int], doubts: list[str], what: str | None
) -> None:
    """Flink keeps them in its checkpoints; a record that is lost, comes twice or is wrong stops the benchmark still."""

    def program(*_arguments: str, good: Sequence[int] = (0,), **_more: object) -> str:
        if 1 not in good:
            raise Refused("ended with 1")
        return json.dumps({"verdict": "violated", "totals": totals, "doubts": doubts, "findings": []})

    monkeypatch.setattr(measure, "program", program)
    monkeypatch.setattr(measure, "EndOffsets", lambda *_: SimpleNamespace(ask=dict))
    monkeypatch.setattr(measure.cluster_admin, "set_offsets", lambda *_: None)
    cluster: Any = SimpleNamespace(connection=None)
    with nullcontext() if what else pytest.raises(Refused):
        assert measure.verified(cluster, CONTENDERS[name], PLACE, 1000) == f"proven but for {what}"


def test_a_verdict_other_than_proven_stops_the_benchmark() -> None:
    failing = ["timeit", "-n1", "-r1", "print('violated'); raise SystemExit(1)"]
    with pytest.raises(Refused, match=r"ended with 1: violated"):
        program(*failing)
    assert program(*failing, good=(0, 1)).startswith("violated")


def _plan(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, Any]:
    """(exit code, what was printed, the plan that was carried out); no broker is started."""
    seen = SimpleNamespace(plan=None)

    class Enough(Exception):
        """The plan is all that the test wants."""

    def carry_out(*arguments: Any) -> None:
        seen.plan = arguments[3]
        raise Enough

    nowhere = SimpleNamespace(cluster=SimpleNamespace(bootstrap="b:1"))
    monkeypatch.setattr(run, "require_built", lambda _names: None)
    monkeypatch.setattr(run, "machine", lambda: {"load before the start": "0"})
    monkeypatch.setattr(run, "benchmark_cluster", lambda _kind: nullcontext(nowhere))
    monkeypatch.setattr(run, "carry_out", carry_out)
    done = CliRunner().invoke(run.bench, arguments)
    assert done.exception is None or isinstance(done.exception, Enough | SystemExit), done.exception
    return done.exit_code, done.output, seen.plan


def test_a_pair_can_be_run_alone_and_the_default_is_ours_beside_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The first name is the one that others are compared with; sizes are sorted, `_` may stand in them.

    Peers are those that users would pick: Spark's own sink, a hand-written loop, Kafka Streams, Flink and franz-go.
    """
    arguments = ["--orders", "4_000_000,1000000", "--contenders", "direct,franz", "--repeat", "3", "--paired"]
    _, _, plan = _plan(monkeypatch, *arguments)
    assert (plan.names, plan.counts) == (["direct", "franz"], [1_000_000, 4_000_000])
    assert (plan.repeat, plan.paired) == (3, True)
    _, _, plan = _plan(monkeypatch, "--orders", "0")
    assert plan.counts == [], "no drains"
    assert {"direct", "pipeline", "spark-sink", "flink", *PEERS} <= set(plan.names)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--contenders", "direct,storm"], "storm: give one or more of direct, pipeline"),
        (["--orders", "many"], "give numbers of orders"),
        (["--brokers", "slow"], "slow: give one or more of default, default-young, tuned"),
        (["--contenders", "franz", "--paired"], "name at least two"),
    ],
)
def test_a_wrong_option_is_told(monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str) -> None:
    code, output, plan = _plan(monkeypatch, *arguments)
    assert code != 0
    assert expected in " ".join(output.split())
    assert plan is None


def test_whoever_unpickles_the_settings_writes_without_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brew.attempt, "KafkaTransaction", brew.attempt.KafkaTransaction)  # restored afterwards
    values = (Connection("localhost:1"), "g", 30.0, 1_000)
    received = pickle.loads(pickle.dumps(at_least_once._Settings(*values)))
    assert received == TransactionSettings(*values)
    assert brew.attempt.KafkaTransaction is at_least_once.OutputThenOffsets


def test_a_run_takes_its_settings_from_where_the_benchmark_replaces_them() -> None:
    assert brew.driver.run.TransactionSettings is TransactionSettings
