"""In which order the brokers are asked, and whom: with clients that are played."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import partitions as survey
from brew.driver.partitions import OffsetsClient
from brew.errors import DeadlineExceeded, Refused
from brew.kafka.topics import Topic
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import Committed, LogOffsets
from brew.planner import check
from brew.settings import PipelineSettings

SETTINGS = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "g")
SOURCE = Topic("in", "id", 2, 1)


class Client:
    def __init__(self, isolation: str, number: int) -> None:
        self.isolation, self.number, self.closed = isolation, number, False

    def close(self) -> None:
        self.closed = True


class Brokers:
    """A log that grows and a position that follows it, one step with each question."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clients: list[Client] = []
        self.asked: list[tuple[Any, ...]] = []
        self.position: dict[int, int | None] = {0: 0, 1: 0}
        self.end = 0
        self.grows = 0
        self.told: dict[int, dict[int, int | None]] = {}
        self.slow: set[str] = set()
        monkeypatch.setattr(survey, "admin", lambda _connection: "admin")
        monkeypatch.setattr(survey, "consumer", self._consumer)
        monkeypatch.setattr(survey, "committed", self._committed)
        monkeypatch.setattr(survey, "log_offsets", self._log_offsets)
        self.surveyor = OffsetsClient(SETTINGS)

    def _consumer(self, _connection: object, group: str, isolation: str) -> Client:
        assert group == "g"
        self.clients.append(Client(isolation, len(self.clients)))
        return self.clients[-1]

    def _step(self) -> None:
        """Somebody writes and commits between any two questions."""
        self.end += self.grows
        if self.grows:
            self.position = dict.fromkeys(self.position, self.end)

    def _committed(
        self, reader: Client, topic: str, partitions: Iterable[int], _deadline: Deadline
    ) -> dict[int, Committed | None]:
        chosen = list(partitions)
        self._step()
        assert (topic, reader.closed) == ("in", False)
        self.asked.append((reader.isolation, reader.number, chosen))
        if reader.isolation in self.slow:
            raise DeadlineExceeded("a pending transaction")
        said = {**self.position, **self.told.get(reader.number, {})}
        return {p: None if (at := said[p]) is None else Committed(at, "") for p in chosen}

    def _log_offsets(
        self, _admin: object, _topic: str, partitions: Iterable[int], _deadline: Deadline
    ) -> dict[int, LogOffsets]:
        self._step()
        self.asked.append(("log",))
        return dict.fromkeys(partitions, LogOffsets(0, self.end, self.end))

    def facts(self, known: dict[int, int]) -> dict[int, int | None]:
        found = self.surveyor.facts(SOURCE, [0, 1], Deadline(5), known)
        for fact in found:
            check(fact, "g")
        return {fact.partition: None if fact.committed is None else fact.committed.offset for fact in found}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_the_log_is_asked_behind_the_position_so_that_a_busy_group_is_never_ahead_of_it(brokers: Brokers) -> None:
    """The other way round what is written and committed in between looks like a truncated log, and is refused."""
    brokers.grows = 10
    for _ in range(3):
        brokers.facts({})
    assert [one[0] for one in brokers.asked] == [READ_UNCOMMITTED, "log"] * 3


def test_also_behind_the_second_and_third_question_for_a_position(brokers: Brokers) -> None:
    brokers.grows = 10
    brokers.facts({0: 1_000})
    assert [one[0] for one in brokers.asked] == [READ_UNCOMMITTED, READ_COMMITTED, READ_UNCOMMITTED, "log"]


def test_a_hint_that_is_not_behind_is_enough(brokers: Brokers) -> None:
    """Pending offsets are waited for only where this run knows better."""
    brokers.position, brokers.end = {0: 7, 1: 9}, 9
    assert brokers.facts({0: 7}) == {0: 7, 1: 9}
    assert brokers.asked == [(READ_UNCOMMITTED, 0, [0, 1]), ("log",)]


@pytest.mark.parametrize("hint", [None, 4])
def test_a_commit_whose_marker_is_on_its_way_is_waited_for(brokers: Brokers, hint: int | None) -> None:
    """To plan from behind it would read its rows twice; without a position at all it would look like a first time."""
    brokers.position, brokers.end = {0: 7, 1: 9}, 9
    brokers.told = {0: {0: hint}}
    assert brokers.facts({0: 7, 1: 9}) == {0: 7, 1: 9}
    assert brokers.asked == [(READ_UNCOMMITTED, 0, [0, 1]), (READ_COMMITTED, 1, [0]), ("log",)]


@pytest.mark.parametrize("hint", [None, 4])
def test_clients_that_tell_the_past_are_left_and_new_ones_kept(brokers: Brokers, hint: int | None) -> None:
    """Those may know a coordinator that is cut off; the next survey does not ask them either."""
    brokers.position, brokers.end = {0: 7, 1: 9}, 9
    brokers.told = {0: {0: hint}, 1: {0: hint}}
    assert brokers.facts({0: 7}) == {0: 7, 1: 9}
    assert [client.closed for client in brokers.clients] == [True, True, False, False]
    assert brokers.facts({}) == {0: 7, 1: 9}
    assert brokers.asked[-2] == (READ_UNCOMMITTED, 2, [0, 1])


def test_a_pending_transaction_blocks_no_survey(brokers: Brokers) -> None:
    """A dead producer's offsets stay pending until somebody fences it."""
    brokers.position, brokers.end, brokers.slow = {0: 4, 1: 9}, 9, {READ_COMMITTED}
    assert brokers.facts({0: 7}) == {0: 4, 1: 9}


def test_a_position_that_is_gone_is_told_as_gone_whatever_was_known(brokers: Brokers) -> None:
    """To go on from memory would hide it."""
    brokers.position, brokers.end = {0: None, 1: 9}, 9
    assert brokers.facts({0: 7}) == {0: None, 1: 9}


def test_nobody_is_asked_about_no_partition(brokers: Brokers) -> None:
    assert brokers.surveyor.facts(SOURCE, [], Deadline(5), {}) == []
    assert brokers.asked == []


def test_a_surveyor_closes_the_clients_that_it_has_by_then(brokers: Brokers) -> None:
    brokers.told, brokers.position = {0: {0: 1}, 1: {0: 1}}, {0: 7, 1: 7}
    with pytest.raises(Refused, match="offset-ahead"):
        brokers.facts({0: 7})
    brokers.surveyor.close()
    assert all(client.closed for client in brokers.clients)
    assert len(brokers.clients) == 4
