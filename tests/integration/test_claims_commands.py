"""`downstream claims`: the world as table and JSON, a paused group, positions set while nobody works."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.programs import until
from harness.transactions import make_topics

from brew.claims.heartbeater import Heartbeater
from brew.claims.member import Membership
from brew.cli import STOPPED_EXIT, exit_code_of
from brew.connection import Connection
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.clients import producer
from brew.names import ExitCode
from brew.signals import Stopped
from downstream.claims.commands import claims_group

INTERVAL_S = 2.0  # twice that without a heartbeat is another's turn, and no test here is about that
RECORDS = 10


@dataclass
class Desk:
    """Two members at work on a topic with three partitions, and the commands."""

    broker: Broker
    names: Names
    capsys: pytest.CaptureFixture[str]

    @property
    def topic(self) -> str:
        return self.names.topic("worked")

    @property
    def claims(self) -> str:
        return self.names.topic("claims")

    def keeper(self, client: str) -> Heartbeater:
        connection = Connection(self.broker.bootstrap)
        who = Membership(client, self.names.group, self.topic, (0, 1, 2), INTERVAL_S)
        return Heartbeater(lambda: ClaimsLog(connection, self.claims), who)

    def call(self, command: str, *more: str, code: int = ExitCode.DONE) -> str:
        self.capsys.readouterr()
        words = [command, "--bootstrap", self.broker.bootstrap, "--claims", self.claims, *more]
        found, told = exit_code_of(claims_group, "claims", words), self.capsys.readouterr()
        assert found == code, told
        return told.out + told.err

    def positions(self) -> list[int]:
        rows = json.loads(self.call("status", "--json"))["partitions"]
        return [row["position"] for row in rows]


@pytest.fixture
def desk(broker: Broker, names: Names, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(broker, names, capsys)
    make_topics(Connection(broker.bootstrap), made.topic, partitions=3)
    writer = producer(Connection(broker.bootstrap), None, timeout_s=30, message_max_bytes=1_000_000)
    for number in range(3 * RECORDS):
        writer.produce(made.topic, b"x", b"k", number % 3)
    assert writer.flush(30) == 0
    return made


@pytest.fixture
def at_work(desk: Desk) -> Iterator[tuple[Heartbeater, Heartbeater]]:
    """Two members whose worker gives back what it is asked for, at offset 7."""
    stop = threading.Event()

    def work(keeper: Heartbeater) -> None:
        while not stop.is_set():
            held = keeper.held()
            if wanted := keeper.to_release():
                keeper.release_partitions({p: replace(held[p], position=7) for p in wanted if p in held})
            keeper.wait(0.05)

    with ExitStack() as stack:
        a, b = (stack.enter_context(desk.keeper(name)) for name in "ab")
        threads = [threading.Thread(target=work, args=[one], daemon=True) for one in (a, b)]
        for one in threads:
            one.start()
        until(lambda: sorted((len(a.held()), len(b.held()))) == [1, 2], "both work")
        yield a, b
        stop.set()
        for one in threads:
            one.join(10)


def test_the_world_is_shown_as_a_table_and_as_json(desk: Desk, at_work: tuple[Heartbeater, Heartbeater]) -> None:
    """Owner, state, age, position and token of each partition; members that own nothing stand by."""
    found = json.loads(desk.call("status", "--json"))
    assert {row["owner"] for row in found["partitions"]} == {"a", "b"}
    assert {row["state"] for row in found["partitions"]} <= {"fresh", "unknown"}
    assert [one["client"] for one in found["members"]] == ["a", "b"]
    assert found["pauses"] == []
    table = desk.call("status")
    assert all(word in table for word in ("owner", "heartbeat age", desk.topic, "fresh"))
    assert json.loads(desk.call("status", "--json", "--group", "another"))["partitions"] == []
    assert len(at_work) == 2


def test_a_paused_group_gives_back_and_goes_on_when_told(desk: Desk, at_work: tuple[Heartbeater, Heartbeater]) -> None:
    """The command returns once nobody owns anything; nobody claims until the pause ends."""
    assert "released all partitions" in desk.call("release", "--group", desk.names.group, "--for-s", "600")
    # The log tells others of a release a moment before its writer has read it back.
    until(lambda: all(one.held() == {} for one in at_work), "they know it, too")
    found = json.loads(desk.call("status", "--json"))
    assert {row["state"] for row in found["partitions"]} == {"free"}
    assert [one["group"] for one in found["pauses"]] == [desk.names.group]
    assert "paused by" in desk.call("status")

    assert "is resumed" in desk.call("release", "--group", desk.names.group, "--end")
    until(lambda: sum(len(one.held()) for one in at_work) == 3, "they work again")


TARGETS: list[tuple[list[str], int]] = [
    (["--to", "latest"], RECORDS),
    (["--to", "earliest"], 0),
    (["--to", "offset", "--offset", "4"], 4),
    (["--to", "offset", "--offset", "99"], RECORDS),
    (["--to", "timestamp", "--at", "2001-01-31T06:00:00Z"], 0),
    (["--to", "timestamp", "--at", "1969-12-31T23:59:59.999Z"], 0),  # -1 ms, which is Kafka's word for the end
    (["--to", "timestamp", "--at", "2101-01-31T06:00:00"], RECORDS),
]


def test_a_position_is_set_anywhere(desk: Desk) -> None:
    """Forwards and backwards, and told as it was before."""
    desk.keeper("a").__enter__().leave()
    before = "-"
    for target, wanted in TARGETS:
        told = desk.call("set-position", "--group", desk.names.group, "--topic", desk.topic, *target)
        assert told.splitlines() == [f"{desk.topic}[{p}]: {before} -> {wanted}" for p in range(3)]
        before = str(wanted)
    assert desk.positions() == [RECORDS] * 3


def test_a_working_group_goes_on_from_the_position_that_was_set(
    desk: Desk, at_work: tuple[Heartbeater, Heartbeater]
) -> None:
    """They give back at 7, are set to 3, and find 3 when they claim again."""
    group = ("--group", desk.names.group, "--topic", desk.topic)
    moved = json.loads(desk.call("set-position", *group, "--to", "offset", "--offset", "3", "--json"))
    assert [(one["before"], one["after"]) for one in moved] == [(7, 3)] * 3
    until(lambda: sum(len(one.held()) for one in at_work) == 3, "they work again")
    assert {held.position for one in at_work for held in one.held().values()} == {3}


def test_a_group_that_does_not_give_back_is_refused_and_works_on(desk: Desk) -> None:
    """The pause is ended again, since nothing was set."""
    with desk.keeper("stubborn") as keeper:
        until(lambda: len(keeper.held()) == 3, "it works")
        words = ("--group", desk.names.group, "--topic", desk.topic, "--to", "earliest", "--wait-s", "0.5")
        assert "stubborn" in desk.call("set-position", *words, code=ExitCode.REFUSED)
        assert json.loads(desk.call("status", "--json"))["pauses"] == []
        assert len(keeper.held()) == 3


WRONG: list[tuple[list[str], str]] = [
    (["--to", "offset"], "--offset N"),
    (["--to", "earliest", "--offset", "3"], "--offset N"),
    (["--to", "timestamp"], "--at TIME"),
    (["--to", "timestamp", "--at", "yesterday"], "'yesterday'"),
    (["--to", "earliest", "--partitions", "1,7"], "['7']"),
]


def test_what_does_not_go_together_is_wrong_usage(desk: Desk) -> None:
    """Before anything is paused."""
    for words, said in WRONG:
        assert said in desk.call("set-position", "--group", "g", "--topic", desk.topic, *words, code=ExitCode.USAGE)


def test_a_watcher_tells_each_change_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three looks at a world that stands still are one line."""
    looks: list[float] = []

    def passing(_watcher: object, seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise Stopped

    monkeypatch.setattr("downstream.claims.commands._pass", passing)
    with desk.keeper("a") as keeper:
        until(lambda: len(keeper.held()) == 3, "it works")
        told = desk.call("watch", "--json", code=STOPPED_EXIT)
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [{row["owner"] for row in line["partitions"]} for line in lines] == [{"a"}]
