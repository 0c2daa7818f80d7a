"""What a replay believes of the marks: only what is read behind its own fence, to the end; no broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Fatal, Refused
from brew.kafka.transaction import TransactionSettings
from brew.offsets import Committed, LogOffsets, SourcePosition
from brew.records import ERROR_REASON
from operations.dlq import dead_letter as marking
from operations.dlq import replay as replaying
from operations.dlq.dead_letter import DeadLetter, DeadLetterFilter, ReplayLog, replay_log_key
from operations.dlq.replay import (
    ReplayRecord,
    ReplayReport,
    ReplayRules,
    ReplaySettings,
    SkippedDeadLetter,
    SkipReason,
    replay,
)

if TYPE_CHECKING:
    from brew.kafka.clients import AdminClient
    from operations.dlq.dead_letter import DeadLetterTopics as Ground

NOWHERE = Connection("nowhere")
RULES = ReplayRules("in", partitions=1, max_bytes=100_000, most_replays=3)
SETTINGS = ReplaySettings("g", TransactionSettings(NOWHERE, "g.replay", 5.0), RULES, DeadLetterFilter())


def letter(offset: int) -> DeadLetter:
    headers = [(ERROR_REASON, b"not-json"), *SourcePosition("in", 0, offset).headers()]
    return DeadLetter(0, offset, b"k", b"x", headers, 0)


class Known(ReplayLog):
    """Marks of which another replay's are committed, and come to be visible behind our fence only."""

    def __init__(self, visible: set[int], hidden: set[int], told: list[str]) -> None:
        super().__init__(NOWHERE, "dlq.replayed", 0, "id", set(visible))
        self.hidden, self.told = hidden, told

    def follow(self, *_how: object) -> None:
        self.told.append("follow")

    def settle(self, *_how: object) -> None:
        self.told.append("settle")
        self.offsets |= self.hidden


class Place:
    """One dead-letter partition, and what a replay does on it, in ``told``."""

    def __init__(
        self, letters: list[DeadLetter], visible: set[int] = frozenset(), hidden: set[int] = frozenset()
    ) -> None:  # type: ignore[assignment]
        self.told: list[str] = []
        self.produced: list[tuple[str, bytes | None]] = []
        self.committed: Committed | None = None
        self.fails_at = ""
        self.admin = None
        self.dead_letter = SimpleNamespace(name="dlq", topic_id="id")
        self.known = Known(set(visible), set(hidden), self.told)
        self._letters = letters

    def partitions(self, _chosen: object) -> list[int]:
        return [0]

    def letters(self, _partitions: object) -> Iterator[list[DeadLetter]]:
        for one in self._letters:
            yield [one]

    def replay_log(self, _partition: int) -> ReplayLog:
        return self.known

    def create_replay_log(self) -> SimpleNamespace:
        return SimpleNamespace(topic_id="marks-id")

    def transaction(self, *_how: object) -> Any:
        return Transaction(self)


class Transaction:
    """The broker's side, as far as the order of steps goes."""

    def __init__(self, place: Place) -> None:
        self._place, self._rows = place, list[tuple[str, bytes | None]]()
        for step in ("fence", "begin", "flush", "abort", "close"):
            setattr(self, step, lambda *_how, step=step: self._step(step))

    def _step(self, step: str) -> None:
        self._place.told.append(step)
        if self._place.fails_at == step:
            raise Fatal(step)

    def locate(self, _deadline: Deadline) -> Committed | None:
        self._step("locate")
        return self._place.committed

    def mapped(self, _step: str) -> Any:
        return nullcontext()

    def produce(self, topic: str, value: bytes | None, key: bytes | None, *_more: object) -> None:
        self._rows.append((topic, key if topic != "in" else value))

    def send_offsets(self, until: int, metadata: str, _deadline: Deadline) -> None:
        self._step(f"send {until}")
        self._pending = Committed(until, metadata)

    def commit(self, _deadline: Deadline) -> None:
        self._step("commit")
        self._place.committed = self._pending
        self._place.produced += self._rows


@contextmanager
def on(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplayReport]:
    monkeypatch.setattr(replaying, "KafkaTransaction", place.transaction)
    report = ReplayReport()
    replay(cast("Ground", place), SETTINGS, report, lambda _done: None)
    yield report


def test_a_letter_whose_mark_is_seen_behind_the_fence_only_is_not_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replay committed it a moment ago: what was visible before the fence does not show its mark."""
    place = Place([letter(5), letter(6)], hidden={5})
    with on(place, monkeypatch) as report:
        assert [one.letter.offset for one in report.replayed] == [6]
        assert [(one.letter.offset, one.why) for one in report.skipped] == [(5, SkipReason.REPLAYED)]
    assert place.produced == [("in", b"x"), ("dlq.replayed", replay_log_key("id", 6))]
    assert place.told.index("fence") < place.told.index("settle") < place.told.index("begin")


def test_each_transaction_settles_the_marks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second round fences anew, so somebody else may have been there in between."""
    monkeypatch.setattr(replaying, "_MOST_LETTERS", 1)
    place = Place([letter(5), letter(6)])
    with on(place, monkeypatch) as report:
        assert len(report.replayed) == 2
    assert place.told.count("settle") == place.told.count("fence") == place.told.count("commit") == 2


def test_a_letter_is_written_back_once_in_two_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one sees the first one's marks and writes nothing."""
    place = Place([letter(5)])
    for backs in (1, 0):
        with on(place, monkeypatch) as report:
            assert len(report.replayed) == backs
    assert len(place.produced) == 2


@pytest.mark.parametrize("step", ["flush", "send 6"])
def test_a_transaction_that_failed_marks_nothing(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """It is aborted, nothing is committed behind it, and the next replay writes its letter back."""
    place = Place([letter(5)])
    place.fails_at = step
    with pytest.raises(Fatal), on(place, monkeypatch):
        pass
    assert (place.told[-2:], place.produced, place.known.offsets) == (["abort", "close"], [], set())
    place.fails_at = ""
    with on(place, monkeypatch) as report:
        assert [type(one) for one in report.replayed] == [ReplayRecord]


def test_the_position_stands_before_the_first_letter_that_waits_and_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A letter that stays holds it; a later replay of what lies below does not move it back."""
    foreign = DeadLetter(0, 6, b"k", b"x", [], 0)
    place = Place([letter(5), foreign, letter(7)])
    with on(place, monkeypatch) as report:
        assert [one.why for one in report.skipped if isinstance(one, SkippedDeadLetter)] == [SkipReason.FOREIGN]
    assert place.committed is not None
    assert place.committed.offset == 6
    place.committed = Committed(9, place.committed.metadata)
    place.known.offsets.clear()
    with on(place, monkeypatch):
        assert place.committed.offset == 9


def test_a_letter_that_waits_in_an_earlier_transaction_holds_the_position_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transaction after transaction: what counts is the first that waits in all of the partition."""
    monkeypatch.setattr(replaying, "_MOST_LETTERS", 1)
    place = Place(
        [letter(5), DeadLetter(0, 6, b"k", b"x", [], 0), letter(7), DeadLetter(0, 8, b"k", b"x", [], 0), letter(9)]
    )
    with on(place, monkeypatch) as report:
        assert len(report.replayed) == 3
    assert place.committed is not None
    assert place.committed.offset == 6


@pytest.mark.parametrize("metadata", ["", "topic-id=older marks-id=marks-id"])
def test_a_position_of_another_topic_or_of_somebody_else_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    """It says nothing of these letters, however high it is."""
    place = Place([letter(5)])
    place.committed = Committed(99, metadata)
    with on(place, monkeypatch):
        assert place.committed.offset == 6


def test_marks_that_were_made_again_are_no_reason_to_write_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's offset remembers the topic that held them."""
    place = Place([letter(5)])
    place.committed = Committed(6, "topic-id=id marks-id=older")
    with pytest.raises(Refused, match=r"marks of dlq\[0\] are gone"), on(place, monkeypatch):
        pass
    assert place.produced == []


def test_another_groups_marks_are_seen_behind_the_fence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replay committed since we began; the two do not fence each other."""
    place = Place([letter(5), letter(6)])
    place.known.settle = lambda *_how: setattr(place.known, "group", "other")  # type: ignore[method-assign]
    with pytest.raises(Refused, match="under group 'other', this is 'g'"), on(place, monkeypatch):
        pass
    assert place.produced == []


def marks(monkeypatch: pytest.MonkeyPatch, *logs: LogOffsets) -> tuple[ReplayLog, list[tuple[int, int]]]:
    left, read = list(logs), list[tuple[int, int]]()
    monkeypatch.setattr(marking, "log_offsets", lambda *_how: {0: left.pop(0) if len(left) > 1 else left[0]})
    monkeypatch.setattr(marking, "scan", lambda _c, _t, ranges, _i: iter(read.append(ranges[0]) or []))  # type: ignore[func-returns-value]
    return ReplayLog(NOWHERE, "m", 0, "id"), read


def test_marks_are_settled_when_nothing_is_open_below_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Following takes what is visible at once; settling waits for the rest, and goes on where the reading stood."""
    made, read = marks(monkeypatch, LogOffsets(0, 3, 8), LogOffsets(0, 3, 8), LogOffsets(0, 7, 8), LogOffsets(0, 8, 8))
    made.follow(cast("AdminClient", None), Deadline(5))
    assert read == [(0, 3)]
    made.settle(cast("AdminClient", None), Deadline(5))
    assert read == [(0, 3), (3, 8)]


def test_marks_that_stay_open_are_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = marks(monkeypatch, LogOffsets(0, 3, 8))
    with pytest.raises(Refused, match=r"m\[0\] has an open transaction that is not this group's"):
        made.settle(cast("AdminClient", None), Deadline(0.01))
    assert read == []
