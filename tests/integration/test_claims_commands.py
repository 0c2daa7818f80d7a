"""`downstream claims`: the group as table and JSON, a paused group, positions set while nobody works."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from harness.programs import until
from harness.servers import Broker, Names, make_topics

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


Members = tuple[Heartbeater, Heartbeater]


@dataclass
class ClaimsCommands:
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

    def heartbeater(self, client: str) -> Heartbeater:
        connection = Connection(self.broker.bootstrap)
        membership = Membership(client, self.names.group, self.topic, (0, 1, 2), INTERVAL_S)
        return Heartbeater(lambda: ClaimsLog(connection, self.claims), membership)

    def run(self, command: str, *more: str, code: int = ExitCode.DONE) -> str:
        self.capsys.readouterr()
        words = [command, "--bootstrap", self.broker.bootstrap, "--claims", self.claims, *more]
        exit_code, captured = exit_code_of(claims_group, "claims", words), self.capsys.readouterr()
        assert exit_code == code, captured
        return captured.out + captured.err

    def positions(self) -> list[int]:
        rows = json.loads(self.run("status", "--json"))["partitions"]
        return [row["position"] for row in rows]


@pytest.fixture
def commands(broker: Broker, names: Names, capsys: pytest.CaptureFixture[str]) -> ClaimsCommands:
    commands = ClaimsCommands(broker, names, capsys)
    make_topics(Connection(broker.bootstrap), commands.topic, partitions=3)
    writer = producer(Connection(broker.bootstrap), None, timeout_s=30, message_max_bytes=1_000_000)
    for number in range(3 * RECORDS):
        writer.produce(commands.topic, b"x", b"k", number % 3)
    assert writer.flush(30) == 0
    return commands


@pytest.fixture
def members(commands: ClaimsCommands) -> Iterator[Members]:
    """Two members whose worker gives back what it is asked for, at offset 7."""
    stop = threading.Event()

    def work(heartbeater: Heartbeater) -> None:
        while not stop.is_set():
            owned = heartbeater.held()
            if to_release := heartbeater.to_release():
                heartbeater.release_partitions({p: replace(owned[p], position=7) for p in to_release if p in owned})
            heartbeater.wait(0.05)

    with ExitStack() as stack:
        a, b = (stack.enter_context(commands.heartbeater(name)) for name in "ab")
        threads = [threading.Thread(target=work, args=[member], daemon=True) for member in (a, b)]
        for thread in threads:
            thread.start()
        until(lambda: sorted((len(a.held()), len(b.held()))) == [1, 2], "both work")
        yield a, b
        stop.set()
        for thread in threads:
            thread.join(10)


def test_the_world_is_shown_as_a_table_and_as_json(commands: ClaimsCommands, members: Members) -> None:
    """Owner, state, age, position and token of each partition; members that own nothing stand by."""
    status = json.loads(commands.run("status", "--json"))
    assert {row["owner"] for row in status["partitions"]} == {"a", "b"}
    assert {row["state"] for row in status["partitions"]} <= {"fresh", "unknown"}
    assert [member["client"] for member in status["members"]] == ["a", "b"]
    assert status["pauses"] == []
    table = commands.run("status")
    assert all(word in table for word in ("owner", "heartbeat age", commands.topic, "fresh"))
    assert json.loads(commands.run("status", "--json", "--group", "another"))["partitions"] == []
    assert len(members) == 2


def test_a_paused_group_gives_back_and_goes_on_when_told(commands: ClaimsCommands, members: Members) -> None:
    """The command returns once nobody owns anything; nobody claims until the pause ends."""
    assert "released all partitions" in commands.run("release", "--group", commands.names.group, "--for-s", "600")
    # The log tells others of a release a moment before its writer has read it back.
    until(lambda: all(member.held() == {} for member in members), "they know it, too")
    status = json.loads(commands.run("status", "--json"))
    assert {row["state"] for row in status["partitions"]} == {"free"}
    assert [pause["group"] for pause in status["pauses"]] == [commands.names.group]
    assert "paused by" in commands.run("status")

    assert "is resumed" in commands.run("release", "--group", commands.names.group, "--end")
    until(lambda: sum(len(member.held()) for member in members) == 3, "they work again")


TARGETS: list[tuple[list[str], int]] = [
    (["--to", "latest"], RECORDS),
    (["--to", "earliest"], 0),
    (["--to", "offset", "--offset", "4"], 4),
    (["--to", "offset", "--offset", "99"], RECORDS),
    (["--to", "timestamp", "--at", "2001-01-31T06:00:00Z"], 0),
    (["--to", "timestamp", "--at", "1969-12-31T23:59:59.999Z"], 0),  # -1 ms, which is Kafka's word for the end
    (["--to", "timestamp", "--at", "2101-01-31T06:00:00"], RECORDS),
]


def test_a_position_is_set_anywhere(commands: ClaimsCommands) -> None:
    """Forwards and backwards, and told as it was before."""
    commands.heartbeater("a").__enter__().leave()
    before = "-"
    for target, expected in TARGETS:
        output = commands.run("set-position", "--group", commands.names.group, "--topic", commands.topic, *target)
        assert output.splitlines() == [f"{commands.topic}[{p}]: {before} -> {expected}" for p in range(3)]
        before = str(expected)
    assert commands.positions() == [RECORDS] * 3


def test_a_working_group_goes_on_from_the_position_that_was_set(commands: ClaimsCommands, members: Members) -> None:
    """They give back at 7, are set to 3, and find 3 when they claim again."""
    group = ("--group", commands.names.group, "--topic", commands.topic)
    moved = json.loads(commands.run("set-position", *group, "--to", "offset", "--offset", "3", "--json"))
    assert [(row["before"], row["after"]) for row in moved] == [(7, 3)] * 3
    until(lambda: sum(len(member.held()) for member in members) == 3, "they work again")
    assert {owned.position for member in members for owned in member.held().values()} == {3}


def test_a_group_that_does_not_give_back_is_refused_and_works_on(commands: ClaimsCommands) -> None:
    """The pause is ended again, since nothing was set."""
    with commands.heartbeater("stubborn") as member:
        until(lambda: len(member.held()) == 3, "it works")
        words = ("--group", commands.names.group, "--topic", commands.topic, "--to", "earliest", "--wait-s", "0.5")
        assert "stubborn" in commands.run("set-position", *words, code=ExitCode.REFUSED)
        assert json.loads(commands.run("status", "--json"))["pauses"] == []
        assert len(member.held()) == 3


WRONG: list[tuple[list[str], str]] = [
    (["--to", "offset"], "--offset N"),
    (["--to", "earliest", "--offset", "3"], "--offset N"),
    (["--to", "timestamp"], "--at TIME"),
    (["--to", "timestamp", "--at", "yesterday"], "'yesterday'"),
    (["--to", "earliest", "--partitions", "1,7"], "['7']"),
]


def test_what_does_not_go_together_is_wrong_usage(commands: ClaimsCommands) -> None:
    """Before anything is paused."""
    for words, message in WRONG:
        arguments = ("--group", "g", "--topic", commands.topic, *words)
        assert message in commands.run("set-position", *arguments, code=ExitCode.USAGE)


def test_a_watcher_tells_each_change_once(commands: ClaimsCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three reads without a change print one line."""
    waits: list[float] = []

    def wait(_watcher: object, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise Stopped

    monkeypatch.setattr("downstream.claims.commands._pass", wait)
    with commands.heartbeater("a") as member:
        until(lambda: len(member.held()) == 3, "it works")
        output = commands.run("watch", "--json", code=STOPPED_EXIT)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [{row["owner"] for row in line["partitions"]} for line in lines] == [{"a"}]


def test_a_watcher_says_that_no_broker_answers(commands: ClaimsCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """All owners looked stale, as if they had died, and nothing said why."""

    @contextmanager
    def away(*given: Any) -> Iterator[None]:
        *_, consequence, _, report = given
        report(f"brokers-away: {consequence}")
        yield

    def stopped(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr("downstream.claims.commands.broker_watch", away)
    monkeypatch.setattr("downstream.claims.commands._pass", stopped)
    with commands.heartbeater("a"):
        for words in ([], ["--json"]):
            assert "brokers-away: nobody is heard" in commands.run("watch", *words, code=STOPPED_EXIT)
