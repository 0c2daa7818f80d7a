"""The six steps of a range: their order, every branch, what each call is given, records larger than a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness.fakes import Broker, FakeTransaction
from hypothesis import given, settings
from hypothesis import strategies as st

from brew import records
from brew.deadline import Deadline
from brew.errors import Abortable, DeadlineExceeded, Fatal, Fenced, KafkaFailure
from brew.fault_injection import PlannedCrash
from brew.names import CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange, SourcePosition
from brew.orders import Reason
from brew.outcome import Outcome, Status
from brew.range_transaction import CrashedOnPurposeError, Rows, Targets, _bytes_of, transact_range
from brew.record import Record, Reject
from brew.settings import Limits
from brew.transaction import Write, abort_at_once, queue, transact
from pipeline.enrichment import enricher

TARGETS = Targets("out", "dead", 2, 3, "topic-id=x", 10_000)
WAITS = {"fence", "locate", "make_room", "await_acks", "flush", "send_offsets", "commit", "abort"}


class Watched(FakeTransaction):
    """Keeps the deadline of each call (its last argument), and the steps that client errors are mapped under."""

    def __init__(self, broker: Broker, *args: object, **more: object) -> None:
        super().__init__(broker, *args, **more)
        self.deadlines: dict[str, Any] = {}
        self.mapped_steps: list[str] = []

    @contextmanager
    def mapped(self, step: str) -> Iterator[None]:
        self.mapped_steps.append(step)
        yield

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in WAITS:
            return method

        def call(*arguments: object) -> object:
            self.deadlines[name] = arguments[-1]
            return method(*arguments)

        return call


def upper(key: bytes | None, value: bytes | None) -> bytes | Reject:
    """Key and value both count; `bad` is rejected."""
    if value is not None and value.startswith(b"bad"):
        return Reject(Reason.NOT_JSON, "no sense")
    return (key or b"") + b":" + (value or b"").upper()


def rows(*offsets: int, value: bytes = b"v", headers: list | None = None, key: bytes | None = b"k") -> Rows:
    n = len(offsets)
    return Rows(list(offsets), [key] * n, [value] * n, [headers] * n, [offset * 100 for offset in offsets])


def run(on: Broker | FakeTransaction, batches: Iterable[Rows], start: int = 0, until: int = 10, **more: Any) -> Outcome:
    """A range of `in[5]`; ``on``: a transaction, or the broker to begin one on."""
    kafka = FakeTransaction(on) if isinstance(on, Broker) else on
    deadline = more.pop("deadline", None) or Deadline(5)
    return transact_range(batches, OffsetRange("in", 5, start, until), TARGETS, upper, kafka, deadline, **more)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_the_six_steps_happen_in_their_order(broker: Broker) -> None:
    """Fence comes before locate, and offsets travel inside the transaction, before its commit."""
    kafka = FakeTransaction(broker)
    outcome = run(kafka, [rows(0, 3)], first_time=True)
    assert kafka.steps == ["fence", "locate", "begin", "produce", "produce", "flush", "send-offsets", "commit"]
    assert (outcome.status, outcome.enriched) == (Status.COMMITTED, 2)
    # Not the offset behind the last row: markers and aborted records at the end of a range count as read.
    assert broker.committed == Committed(10, "topic-id=x")


def test_an_outcome_names_its_range_and_what_was_found_and_written() -> None:
    """No committed offset is -1; `newest_ms`, the age of what is left, is None for a range without records."""
    outcome = run(Broker(), [rows(2)], start=1, first_time=True)
    assert (outcome.partition, outcome.start, outcome.until, outcome.position) == (5, 1, 10, -1)
    assert 0 < outcome.seconds < 60
    outcome = run(Broker(), [rows(0, 1), rows(5), rows()], first_time=True)
    assert (outcome.written, outcome.newest_ms) == (3, 500)
    assert run(Broker(), [], first_time=True).newest_ms is None


def test_a_range_that_is_read_while_it_is_written_ends_where_reading_ended(broker: Broker) -> None:
    """What is committed, checked and reported is what was read by then; nobody knew it when the transaction began."""
    reached = [3]

    def batches() -> Iterator[Rows]:
        yield rows(0, 2)
        reached[0] = 12
        yield rows(3, 9)

    outcome = run(broker, batches(), until=3, first_time=True, reached=lambda: reached[0])
    assert (outcome.status, outcome.until, outcome.enriched) == (Status.COMMITTED, 12, 4)
    assert broker.committed == Committed(12, "topic-id=x")
    with pytest.raises(Fatal, match="left"):
        run(Broker(), [rows(0, 3)], until=3, first_time=True, reached=lambda: 3)


def test_rows_below_the_committed_offset_are_not_written_again() -> None:
    """A range that an older attempt finished in part is resumed inside."""
    broker = Broker(committed=Committed(4, ""))
    outcome = run(broker, [rows(2, 3, 4, 9)], start=1)
    assert broker.sources() == [4, 9]
    assert (outcome.status, outcome.position) == (Status.COMMITTED, 4)


@pytest.mark.parametrize(
    ("committed", "more", "expected"),
    [
        (10, {"first_time": False}, Status.ALREADY_DONE),
        (11, {"first_time": False}, Status.AHEAD),
        (4, {"first_time": False}, Status.OFFSET_GAP),
        (None, {"first_time": False}, Status.OFFSET_GAP),
        (None, {}, Status.OFFSET_GAP),  # `first_time` has to be said
        (10, {"first_time": True}, Status.ALREADY_DONE),
    ],
)
def test_locate_decides_when_there_is_nothing_to_write(committed: int | None, more: dict, expected: Status) -> None:
    """Done, overtaken, or a gap: the transaction is not begun, and how far somebody read says nothing about it."""
    kafka = FakeTransaction(broker := Broker(committed=None if committed is None else Committed(committed, "")))
    outcome = run(kafka, [rows(6)], start=5, reached=lambda: 99, **more)
    assert (outcome.status, outcome.until, kafka.steps) == (expected, 10, ["fence", "locate"])
    assert broker.log == []


@pytest.mark.parametrize("step", ["begin", "produce", "flush", "send-offsets"])
@pytest.mark.parametrize("error", [Abortable("x"), Fatal("x")])
@pytest.mark.parametrize(("offsets", "applied"), [((1, 2), False), ((0, 9), True)])
def test_an_error_before_the_commit_makes_nothing_visible(
    step: str, error: KafkaFailure, offsets: tuple[int, ...], applied: bool, broker: Broker
) -> None:
    """Above all after a failed send-offsets no commit follows: it would publish output without its offset."""
    kafka = FakeTransaction(broker, (step, error), applied=applied)
    with pytest.raises(type(error)):
        run(kafka, [rows(*offsets)], first_time=True)
    assert kafka.steps[-2:] == ([step, "abort"] if step != "begin" else ["locate", "begin"])
    assert (broker.visible(), broker.committed) == ([], None)
    assert all(record.state == "aborted" for record in broker.log)


@pytest.mark.parametrize("applied", [False, True])
def test_a_commit_without_an_answer_is_settled_by_the_next_attempt(applied: bool, broker: Broker) -> None:
    """Nothing is sent after a failed commit; the next fence and locate find one of two outcomes, never a third."""
    kafka = FakeTransaction(broker, ("commit", Fatal("no answer")), applied=applied)
    with pytest.raises(Fatal):
        run(kafka, [rows(1, 2)], first_time=True)
    assert kafka.steps[-1] == "commit"
    outcome = run(broker, [rows(1, 2)], first_time=True)
    assert outcome.status is (Status.ALREADY_DONE if applied else Status.COMMITTED)
    assert broker.sources() == [1, 2]


def test_a_zombie_that_wakes_up_is_fenced_and_its_records_stay_invisible(broker: Broker) -> None:
    """The older holder of the id can neither write nor commit after the newer one has fenced."""

    def wake() -> Iterator[Rows]:
        yield rows(1)
        run(broker, [rows(1, 2)], first_time=True)
        yield rows(2)

    with pytest.raises(Fenced):
        run(broker, wake(), first_time=True)
    assert broker.sources() == [1, 2]


@pytest.mark.parametrize("batches", [[(3, 2)], [(3, 3)], [(-1, 2)], [(2, 10)], [(0, 5), (4,)]])
def test_a_reader_that_leaves_its_range_is_stopped(batches: list[tuple[int, ...]], broker: Broker) -> None:
    """Rows out of order, twice, or outside of the range mean that somebody shuffled or split the plan."""
    with pytest.raises(Fatal, match="the reader left"):
        run(broker, [rows(*offsets) for offsets in batches], first_time=True)
    assert broker.visible() == []


def test_a_reader_that_fails_half_way_makes_nothing_visible(broker: Broker) -> None:
    """Only natural exhaustion counts as the end of a range."""

    def broken() -> Iterator[Rows]:
        yield rows(0, 1)
        raise OSError("the JVM went away")

    with pytest.raises(OSError, match="went away"):
        run(broker, broken(), first_time=True)
    assert (broker.visible(), broker.committed) == ([], None)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_crash_at_each_point_leaves_all_or_nothing_and_is_healed(point: CrashPoint, broker: Broker) -> None:
    """The next attempt fences, locates, and the result is exactly once."""
    crash = PlannedCrash(point, CrashMode.PIPELINE)
    if point is CrashPoint.BEFORE_REPORT:  # the task's point, behind the kernel
        run(broker, [rows(1, 2, 3)], first_time=True, crash=crash)
    else:
        with pytest.raises(CrashedOnPurposeError):
            run(broker, [rows(1, 2, 3)], first_time=True, crash=crash)
    committed = point in {CrashPoint.COMMIT_IN_FLIGHT, CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}
    assert len(broker.visible()) == (3 if committed else 0)
    run(broker, [rows(1, 2, 3)], first_time=True)
    assert broker.sources() == [1, 2, 3]


_step = st.sampled_from(["fence", "locate", "begin", "produce", "flush", "send-offsets", "commit"])
_trouble = st.one_of(st.none(), st.sampled_from(CrashPoint), st.tuples(_step, st.booleans()))


@given(visible=st.sets(st.integers(0, 39)), troubles=st.lists(st.tuples(st.integers(1, 12), _trouble), max_size=25))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_each_visible_record_comes_out_exactly_once(visible: set[int], troubles: list) -> None:
    """Any sequence of crashes and errors at any step, then a drain: output equals input, position equals the end."""
    broker = Broker()
    plan = [*troubles, *[(40, None)] * 2]
    for size, trouble in plan:
        start = broker.committed.offset if broker.committed else 0
        if start == 40:
            break
        until = min(40, start + size)
        batch = rows(*sorted(o for o in visible if start <= o < until))
        fail = (trouble[0], Abortable("x")) if isinstance(trouble, tuple) else None
        kafka = FakeTransaction(broker, fail, applied=isinstance(trouble, tuple) and trouble[1])
        crash = PlannedCrash(trouble, CrashMode.PIPELINE) if isinstance(trouble, CrashPoint) else None
        try:
            run(kafka, [batch], start, until, crash=crash, first_time=broker.committed is None)
        except (KafkaFailure, CrashedOnPurposeError):
            continue
    assert broker.sources() == sorted(visible)
    assert broker.committed == Committed(40, "topic-id=x")


def copied(_topic: str, _partition: int, batch: Rows) -> list[tuple[Record]]:
    """A transformation: the same record once more."""
    return [(Record(key=key, value=value),) for key, value in zip(batch.keys, batch.values, strict=True)]


def test_every_wait_of_a_transaction_shares_its_deadline() -> None:
    """A step with no deadline would block for ever; the steps together have the transaction's time."""
    deadline = Deadline(5)
    for value, transform in ((b"v", None), (b"bad", None), (b"v", copied)):
        kafka = Watched(Broker(), queue=1)
        run(kafka, [rows(0, 1, value=value)], deadline=deadline, first_time=True, transform=transform)
        assert kafka.deadlines.keys() == WAITS - {"abort"}
        assert all(passed is deadline for passed in kafka.deadlines.values())
        assert kafka.mapped_steps == ["produce"]


def test_what_is_written_has_a_deadline_of_its_own_and_the_caller_learns_whether_it_was(broker: Broker) -> None:
    """Preparing may take its time while no transaction is open; one that never begins has written nothing."""
    deadline, own, deadlines = Deadline(5), Deadline(9), list[Deadline]()
    kafka = Watched(broker)
    assert transact(kafka, lambda _: Write(deadlines.append, lambda: 4, "m", own), deadline) is True
    assert (deadlines, broker.committed) == ([own], Committed(4, "m"))
    given_own = dict.fromkeys(["flush", "send_offsets", "commit"], own)
    assert kafka.deadlines == dict.fromkeys(["fence", "locate"], deadline) | given_own
    assert transact(kafka, lambda _: None, deadline) is False


def test_a_crash_half_way_tells_how_many_records_are_in_the_log(broker: Broker) -> None:
    """The announced number is what a read_uncommitted reader finds; it is flushed within the deadline."""
    deadline, kafka = Deadline(5), Watched(broker)
    crash = PlannedCrash(CrashPoint.MID_PRODUCE, CrashMode.PIPELINE)
    with pytest.raises(CrashedOnPurposeError, match=r"^crashed on purpose$") as crashed:
        run(kafka, [rows(*range(9))], deadline=deadline, first_time=True, crash=crash)
    assert crashed.value.tally.enriched == len(broker.log) == 5
    assert kafka.deadlines["flush"] is deadline


@pytest.mark.parametrize("step", ["begin", "await_acks"])
def test_a_transaction_that_runs_out_of_time_says_so_and_is_aborted(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The text names the step; a transformation is not asked when there is no time left."""
    now, kafka = [0.0], FakeTransaction(Broker())
    method = getattr(kafka, step)

    def slow(*arguments: object) -> None:
        now[0] = 6.0
        method(*arguments)

    monkeypatch.setattr(kafka, step, slow)
    transform = None if step == "await_acks" else lambda *_: pytest.fail("asked")
    with pytest.raises(DeadlineExceeded, match=r"^produce: "):
        run(kafka, [rows(0)], deadline=Deadline(5, lambda: now[0]), first_time=True, transform=transform)
    assert kafka.steps[-1] == "abort"


def test_an_abort_has_five_seconds_of_its_own(broker: Broker) -> None:
    """The transaction's own deadline may be over; a broker that does not answer must not hold up the process."""
    kafka = Watched(broker, ("abort", Fatal("x")))
    abort_at_once(kafka)
    assert kafka.deadlines["abort"].budget_s == 5


def test_columns_of_a_batch_that_differ_in_length_are_an_error(broker: Broker) -> None:
    """The rest of the longer one would be lost without a word."""
    with pytest.raises(ValueError, match="argument 6 is shorter"):
        run(broker, [rows(0, 1)], first_time=True, transform=lambda *_: [()])
    with pytest.raises(ValueError, match="shorter"):
        run(broker, [rows(0, 1)._replace(values=[b"v"])], first_time=True)
    assert broker.visible() == []


@pytest.mark.parametrize("queue_size", [1, 2, 100])
def test_a_record_is_the_same_whether_it_waited_for_room_or_not(queue_size: int, broker: Broker) -> None:
    """Topic, partition, key, value, timestamp and headers, the input's first; BufferError means wait, not drop."""
    kafka, evidence = FakeTransaction(broker, queue=queue_size), ("profile", b"0/7")
    inputs = [("trace", b"1"), ("empty", None)]
    outcome = run(kafka, [rows(*range(9), headers=inputs)], first_time=True, evidence=lambda: evidence)
    for offset, record in zip(range(9), broker.visible(), strict=True):
        assert (record.topic, record.partition, record.key, record.value) == ("out", 2, b"k", b"k:V")
        assert record.timestamp == offset * 100
        assert record.headers == [*inputs, evidence, *SourcePosition("in", 5, offset).headers()]
    assert (outcome.enriched, outcome.rejected, outcome.reasons) == (9, 0, {})
    assert (kafka.waits > 0) is (queue_size < 9)


def test_a_dead_letter_says_why_and_where_from_in_the_same_transaction(broker: Broker) -> None:
    """Bytes unchanged; each header as docs/PROTOCOL.md has it, behind the input's own; two of them count as two."""
    batches = [rows(3, 4, value=b"bad", headers=[("h", b"1")]), rows(5)]
    outcome = run(broker, batches, first_time=True)
    first, second, good = broker.visible()
    assert (first.topic, first.partition, first.key, first.value, first.timestamp) == ("dead", 3, b"k", b"bad", 300)
    assert first.headers == [
        ("h", b"1"),
        (records.ERROR_REASON, b"not-json"),
        (records.ERROR_EXCEPTION, b"Reject"),
        (records.ERROR_MESSAGE, b"no sense"),
        (records.ERROR_TOPIC, b"in"),
        (records.ERROR_PARTITION, b"5"),
        (records.ERROR_OFFSET, b"3"),
        *SourcePosition("in", 5, 3).headers(),
    ]
    assert (dict(second.headers)[records.ERROR_OFFSET], good.topic) == (b"4", "out")
    assert (outcome.enriched, outcome.rejected, outcome.reasons) == (1, 2, {"not-json": 2})
    assert [type(name) for name in outcome.reasons] == [str], "plain words, which JSON takes as names"


@pytest.mark.parametrize(("key", "omitted"), [(None, False), (b"k", True)])
def test_a_dead_letter_fits_when_it_fills_its_limit_exactly(key: bytes | None, omitted: bool, broker: Broker) -> None:
    """4,096 bytes are kept for headers; one byte more and a reference goes out instead, or the pipeline would stop."""
    value = b"bad".ljust(TARGETS.dead_letter_max_bytes - 4096)
    run(broker, [rows(0, value=value, key=key)], first_time=True)
    (dead,) = broker.visible()
    size = b"%d" % len(value) if omitted else None
    assert (dead.value, dict(dead.headers).get(records.ERROR_OMITTED)) == (None if omitted else value, size)


LONG = [("h", b"x" * 9_000)]


@pytest.mark.parametrize(
    ("value", "headers", "kept"),
    [
        (b"bad" * 1_000, [("h", b"x" * 2_000)], (True, True)),
        (b"bad" * 1_000, [("h", b"x" * 5_000)], (False, True)),
        (b"bad" * 1_000, LONG, (True, False)),
        (b"bad" * 3_000, LONG, (False, False)),
        (None, LONG, (True, False)),
        (b"bad", [("", None)] * 2_900, (True, True)),
        (b"bad", [("", None)] * 2_951, (False, True)),
        (b"bad", [("n" * 64, b"x" * 64)] * 45, (True, False)),
    ],
)
@pytest.mark.parametrize("message", ["", "no sense", "no \u00fc" * 20_000])
def test_a_dead_letter_fits_whatever_its_record_and_its_message_have(
    value: bytes | None, headers: list, kept: tuple[bool, bool], message: str, broker: Broker
) -> None:
    """One that the broker refuses would block its partition. What stays in the input is named by headers."""
    reject = Reject("no" * 10_000, message)
    batch, offered = rows(0, value=value, headers=headers), OffsetRange("in", 5, 0, 10)  # type: ignore[arg-type]
    transact_range([batch], offered, TARGETS, lambda *_: reject, FakeTransaction(broker), Deadline(5), first_time=True)
    (dead,) = broker.visible()
    own, found = dead.headers[: len(headers)], dict(dead.headers)
    assert size_in_a_batch(dead) <= TARGETS.dead_letter_max_bytes - 61
    assert (dead.value == value, own == headers) == kept
    assert found.get(records.ERROR_OMITTED) == (None if kept[0] else b"%d" % len(value or b""))
    assert found.get(records.ERROR_OMITTED_HEADERS) == (None if kept[1] else b"%d" % len(headers))
    text = (found[records.ERROR_MESSAGE] or b"").decode()
    assert text == message or (text.startswith("no \u00fc") and text.endswith(" ... (cut: 100000 bytes)"))
    assert (found[records.ERROR_REASON] or b"").endswith(b" ... (cut: 20000 bytes)")
    assert dead.headers[-3:] == SourcePosition("in", 5, 0).headers()


@pytest.mark.parametrize("size", [0, 63, 64, 8_191, 8_192, 2**20 - 1, 2**20, 2**27 - 1, 2**27])
def test_a_headers_length_counts_as_a_signed_varint(size: int) -> None:
    """Seven bits a byte, and one bit is the sign."""
    length = max(1, -(-(2 * size).bit_length() // 7))
    assert _bytes_of(None, None, [("n", bytes(size))]) == 2 + length + size


@pytest.mark.parametrize("key", [b"k", b"k" * 500])
def test_a_message_gets_all_the_bytes_that_its_dead_letter_has_left(key: bytes, broker: Broker) -> None:
    reject, offered, batch = Reject("no", "x" * 20_000), OffsetRange("in", 5, 0, 10), rows(0, key=key)
    transact_range([batch], offered, TARGETS, lambda *_: reject, FakeTransaction(broker), Deadline(5), first_time=True)
    (dead,) = broker.visible()
    # Of the 128 bytes for its frame, a record uses 25, and the lengths of key, value and message take 4 or 5.
    assert TARGETS.dead_letter_max_bytes - size_in_a_batch(dead) == 128 - 25 - (4 if key == b"k" else 5)


def size_in_a_batch(record: Any) -> int:
    """As librdkafka encodes it: a length as a varint before each field."""

    def length(text: bytes | None) -> int:
        n = len(text or b"")
        return n + (1 if n < 64 else 2 if n < 8192 else 3)

    headers = sum(length(name.encode()) + length(text) for name, text in record.headers)
    return 25 + length(record.key) + length(record.value) + headers


def test_a_queued_record_goes_where_it_should_with_the_brokers_time(broker: Broker) -> None:
    """A timestamp of 0 is now; room is made within the deadline."""
    deadline, kafka = Deadline(5), Watched(broker, queue=1)
    kafka.fence(deadline)
    for _ in range(2):
        queue(kafka, deadline, "t", b"v", b"k", 4, headers=[("h", b"1")])
    kafka.flush(deadline)
    records = [(r.topic, r.value, r.key, r.partition, r.timestamp, r.headers) for r in broker.log]
    assert records == [("t", b"v", b"k", 4, 0, [("h", b"1")])] * 2
    assert kafka.deadlines["make_room"] is deadline


def run_counting_waits(kafka: FakeTransaction, count: int, size: int, waits: list[int]) -> None:
    @contextmanager
    def waiting() -> Iterator[None]:
        before = len(kafka.settled)
        yield
        waits.append(len(kafka.settled) - before)

    batch = rows(*range(count), value=b'{"customer_id":"c","note":"%s"}' % (b"x" * size), key=b"gold-1")
    enrich, targets = enricher(Limits(max_bytes=3_000_000)), Targets("out", "dead", 2, 2)
    offered = OffsetRange("in", 2, 0, count)
    transact_range([batch], offered, targets, enrich, kafka, Deadline(20), first_time=True, waiting=waiting)


@pytest.mark.parametrize(("count", "size", "most"), [(6000, 60, 2500), (300, 10_240, 62), (3, 2_000_000, 1)])
def test_what_is_queued_is_acknowledged_before_it_fills_a_second_batch(count: int, size: int, most: int) -> None:
    """A batch that is ready and may not be sent yet has librdkafka's thread poll without pause."""
    kafka, waits = FakeTransaction(Broker(), queue=10_000), list[int]()
    run_counting_waits(kafka, count, size, waits)
    assert sum(kafka.settled) == count
    assert max(kafka.settled) == most
    assert waits == [1] * len(kafka.settled), "each wait is one in which others may have the turn"


def test_a_piece_without_an_acknowledgement_makes_nothing_visible(broker: Broker) -> None:
    class Slow(FakeTransaction):
        """The second wait finds no acknowledgement."""

        def await_acks(self, deadline: Deadline) -> None:
            if self.settled:
                raise DeadlineExceeded("produce: 1 records undelivered after 5 s")
            super().await_acks(deadline)

    with pytest.raises(DeadlineExceeded, match="undelivered"):
        run_counting_waits(Slow(broker, queue=10_000), 6000, 60, [])
    assert (broker.sources(), broker.committed) == ([], None)
