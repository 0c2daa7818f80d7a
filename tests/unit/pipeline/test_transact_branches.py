"""What the kernel hands to each call of its port: the deadline, the record, the numbers of its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.fakes import Broker, FakeTransaction

from brew.deadline import Deadline
from brew.errors import Abortable, DeadlineExceeded, Fatal
from brew.fault_injection import PlannedCrash
from brew.names import CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange, SourcePosition
from brew.orders import Reason
from brew.outcome import Outcome, Status
from brew.range_transaction import CrashedOnPurposeError, Rows, Targets, transact_range
from brew.record import Reject
from brew.records import (
    ERROR_EXCEPTION,
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_OMITTED,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
)
from brew.transaction import abort_at_once, queue

TARGETS = Targets("out", "dead", 2, 3, "topic-id=x", 10_000)


class Watched(FakeTransaction):
    """Keeps the deadline of each call, and the steps that client errors are mapped under."""

    def __init__(self, broker: Broker, *args: object, **more: object) -> None:
        super().__init__(broker, *args, **more)
        self.deadlines: dict[str, object] = {}
        self.mapped_steps: list[str] = []

    @contextmanager
    def mapped(self, step: str) -> Iterator[None]:
        self.mapped_steps.append(step)
        yield

    def fence(self, deadline: Deadline) -> None:
        self.deadlines["fence"] = deadline
        super().fence(deadline)

    def locate(self, deadline: Deadline) -> Committed | None:
        self.deadlines["locate"] = deadline
        return super().locate(deadline)

    def make_room(self, deadline: Deadline) -> None:
        self.deadlines["make_room"] = deadline
        super().make_room(deadline)

    def settle(self, deadline: Deadline) -> None:
        self.deadlines["settle"] = deadline
        super().settle(deadline)

    def flush(self, deadline: Deadline) -> None:
        self.deadlines["flush"] = deadline
        super().flush(deadline)

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        self.deadlines["send-offsets"] = deadline
        super().send_offsets(until, metadata, deadline)

    def commit(self, deadline: Deadline) -> None:
        self.deadlines["commit"] = deadline
        super().commit(deadline)

    def abort(self, deadline: Deadline) -> None:
        self.deadlines["abort"] = deadline
        super().abort(deadline)


def upper(key: bytes | None, value: bytes | None) -> bytes | Reject:
    """Key and value both count; `bad` is rejected."""
    if value is not None and value.startswith(b"bad"):
        return Reject(Reason.NOT_JSON, "no sense")
    return (key or b"") + b":" + (value or b"").upper()


def rows(*offsets: int, value: bytes = b"v", key: bytes | None = b"k") -> Rows:
    n = len(offsets)
    return Rows(list(offsets), [key] * n, [value] * n, [None] * n, [offset * 100 for offset in offsets])


def run(
    kafka: FakeTransaction, *batches: Rows, start: int = 0, deadline: Deadline | None = None, **more: object
) -> Outcome:
    targets = more.pop("targets", TARGETS)
    offered = OffsetRange("in", 5, start, 10)
    return transact_range(batches, offered, targets, upper, kafka, deadline or Deadline(5), **more)


def test_every_wait_of_a_transaction_shares_its_deadline() -> None:
    """A step with no deadline would block for ever; the steps together have the transaction's time."""
    deadline = Deadline(5)
    for value in (b"v", b"bad"):
        kafka = Watched(Broker(), queue=1)
        run(kafka, rows(0, 1, value=value), deadline=deadline, first_time=True)
        assert set(kafka.deadlines) == {"fence", "locate", "make_room", "settle", "flush", "send-offsets", "commit"}
        assert all(given is deadline for given in kafka.deadlines.values())
        assert kafka.mapped_steps == ["produce"]


def test_a_crash_half_way_flushes_within_the_deadline() -> None:
    deadline, kafka = Deadline(5), Watched(Broker())
    with pytest.raises(CrashedOnPurposeError):
        run(
            kafka,
            rows(0, 1, 2),
            deadline=deadline,
            first_time=True,
            crash=PlannedCrash(CrashPoint.MID_PRODUCE, CrashMode.PIPELINE),
        )
    assert kafka.deadlines["flush"] is deadline


def test_a_transaction_that_runs_out_of_time_while_it_produces_says_so_and_is_aborted() -> None:
    """The text names the step."""
    now = [0.0]

    class Slow(Watched):
        def settle(self, deadline: Deadline) -> None:
            now[0] = 6.0
            super().settle(deadline)

    kafka = Slow(Broker())
    with pytest.raises(DeadlineExceeded, match=r"^produce: "):
        run(kafka, rows(0), deadline=Deadline(5, lambda: now[0]), first_time=True)
    assert kafka.steps[-1] == "abort"


def test_an_abort_has_five_seconds_of_its_own() -> None:
    """The transaction's own deadline may be over; a broker that does not answer must not hold up the process."""
    kafka = Watched(Broker(), ("abort", Fatal("x")))
    abort_at_once(kafka)
    given = kafka.deadlines["abort"]
    assert isinstance(given, Deadline)
    assert given.budget_s == 5


def test_without_a_word_from_the_driver_a_missing_offset_is_a_gap() -> None:
    """`first_time` has to be said; the default writes nothing."""
    kafka = Watched(Broker())
    assert run(kafka, rows(0)).status is Status.OFFSET_GAP
    assert kafka.steps == ["fence", "locate"]


def test_an_outcome_names_its_range_and_what_was_found() -> None:
    """No committed offset is -1; the time is the time that passed."""
    outcome = run(Watched(Broker()), rows(2), start=1, first_time=True)
    assert (outcome.partition, outcome.start, outcome.until, outcome.position) == (5, 1, 10, -1)
    assert 0 < outcome.seconds < 60
    found = run(Watched(Broker(committed=Committed(3, ""))), rows(3), start=1)
    assert (found.position, found.status) == (3, Status.COMMITTED)


def test_an_outcome_without_a_transaction_names_the_range_that_was_offered() -> None:
    """How far somebody read says nothing about a range that is not written."""
    for committed in (0, 10):
        outcome = run(Watched(Broker(committed=Committed(committed, ""))), start=1, reached=lambda: 99)
        assert outcome.until == 10
        assert outcome.status is not Status.COMMITTED


def test_columns_of_a_batch_that_differ_in_length_are_an_error() -> None:
    """The rest of the longer one would be lost without a word."""
    broker = Broker()
    torn = rows(0, 1)._replace(values=[b"v"])
    with pytest.raises(ValueError, match="shorter"):
        run(Watched(broker), torn, first_time=True)
    assert broker.visible() == []


@pytest.mark.parametrize("queue_size", [1, 100])
def test_a_record_is_the_same_whether_it_waited_for_room_or_not(queue_size: int) -> None:
    """Topic, partition, key, value, timestamp and headers."""
    broker = Broker()
    evidence = ("profile", b"0/7")
    outcome = run(Watched(broker, queue=queue_size), rows(3, 4), first_time=True, evidence=lambda: evidence)
    for offset, record in zip((3, 4), broker.visible(), strict=True):
        assert (record.topic, record.partition, record.key, record.value) == ("out", 2, b"k", b"k:V")
        assert record.timestamp == offset * 100
        assert record.headers == [evidence, *SourcePosition("in", 5, offset).headers()]
    assert (outcome.enriched, outcome.rejected, outcome.reasons) == (2, 0, {})


def test_a_dead_letter_says_why_and_where_from() -> None:
    """Each header as docs/PROTOCOL.md has it; two of them count as two."""
    broker = Broker()
    outcome = run(Watched(broker), rows(3, 4, value=b"bad"), first_time=True)
    first, second = broker.visible()
    assert (first.topic, first.partition, first.key, first.value, first.timestamp) == ("dead", 3, b"k", b"bad", 300)
    assert first.headers == [
        (ERROR_REASON, b"not-json"),
        (ERROR_EXCEPTION, b"Reject"),
        (ERROR_MESSAGE, b"no sense"),
        (ERROR_TOPIC, b"in"),
        (ERROR_PARTITION, b"5"),
        (ERROR_OFFSET, b"3"),
        *SourcePosition("in", 5, 3).headers(),
    ]
    assert dict(second.headers)[ERROR_OFFSET] == b"4"
    assert (outcome.enriched, outcome.rejected, outcome.reasons) == (0, 2, {"not-json": 2})


@pytest.mark.parametrize(("key", "omitted"), [(None, False), (b"k", True)])
def test_a_dead_letter_fits_when_value_key_and_headers_fill_its_limit_exactly(key: bytes | None, omitted: bool) -> None:
    """4,096 bytes are kept for headers; one byte more and a reference goes out instead."""
    broker = Broker()
    value = b"bad".ljust(TARGETS.dead_letter_max_bytes - 4096)
    run(Watched(broker), rows(0, value=value, key=key), first_time=True)
    (dead,) = broker.visible()
    assert (dead.value is None, ERROR_OMITTED in dict(dead.headers)) == (omitted, omitted)


def test_a_queued_record_goes_where_it_should_with_the_brokers_time() -> None:
    """A timestamp of 0 is now; room is made within the deadline."""
    broker, deadline = Broker(), Deadline(5)
    kafka = Watched(broker, queue=1)
    kafka.fence(deadline)
    for _ in range(2):
        queue(kafka, deadline, "t", b"v", b"k", 4, headers=[("h", b"1")])
    kafka.flush(deadline)
    assert [(r.topic, r.value, r.key, r.partition, r.timestamp, r.headers) for r in broker.log] == [
        ("t", b"v", b"k", 4, 0, [("h", b"1")])
    ] * 2
    assert kafka.deadlines["make_room"] is deadline


@pytest.mark.parametrize(("offsets", "sent"), [((1, 2), False), ((0, 9), True)])
def test_a_failed_send_offsets_is_aborted_wherever_the_rows_stood(offsets: tuple[int, ...], sent: bool) -> None:
    """Nothing after it but the abort."""
    kafka = Watched(Broker(), ("send-offsets", Abortable("x")), applied=sent)
    with pytest.raises(Abortable):
        run(kafka, rows(*offsets), first_time=True)
    assert kafka.steps[-2:] == ["send-offsets", "abort"]
