"""The kernel against a broker in memory: order of the six steps, every branch, and a property over all crashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from harness.fakes import Broker, FakeTransaction
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.deadline import Deadline
from brew.errors import Abortable, Fatal, Fenced, KafkaFailure
from brew.fault_injection import PlannedCrash
from brew.names import CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange, SourcePosition
from brew.outcome import Outcome, Status
from brew.range_transaction import CrashedOnPurposeError, Rows, Targets, transact_range
from brew.records import ERROR_OMITTED, ERROR_REASON
from brew.settings import Limits
from pipeline.orders import enricher

TARGETS = Targets("out", "dead", 2, 2, "topic-id=x", 10_000)
GOOD = b'{"customer_id":"c"}'
ENRICH = enricher(Limits(max_bytes=2000))


def rows(*offsets: int, value: bytes | None = GOOD, headers: list | None = None) -> Rows:
    n = len(offsets)
    return Rows(list(offsets), [b"gold-1"] * n, [value] * n, [headers] * n, [7] * n)


def run(broker: Broker, batches: Iterable[Rows], start: int = 0, until: int = 10, **more: object) -> Outcome:
    kafka = more.pop("kafka", None) or FakeTransaction(broker)
    offered = OffsetRange("in", 2, start, until)
    return transact_range(batches, offered, TARGETS, ENRICH, kafka, Deadline(5), **more)


def test_the_six_steps_happen_in_their_order() -> None:
    """Fence comes before locate, and offsets travel inside the transaction, before its commit."""
    kafka = FakeTransaction(broker := Broker())
    outcome = run(broker, [rows(0, 3)], kafka=kafka, first_time=True)
    assert kafka.steps == ["fence", "locate", "begin", "produce", "produce", "flush", "send-offsets", "commit"]
    assert (outcome.status, outcome.enriched) == (Status.COMMITTED, 2)


def test_the_outcome_tells_when_the_last_record_of_the_range_was_written() -> None:
    """Whoever watches knows the age of what is left by that; a range without records tells none."""
    late = rows(5)._replace(timestamps=[9])
    assert run(Broker(), [rows(0, 3), late, rows()], first_time=True).newest_ms == 9
    assert run(Broker(), [], first_time=True).newest_ms is None


def test_the_offset_behind_the_range_is_committed_not_the_one_behind_the_last_row() -> None:
    """Markers and aborted records at the end of a range count as read."""
    broker = Broker()

    run(broker, [rows(0, 3)], first_time=True)

    assert broker.committed == Committed(10, "topic-id=x")


def test_a_range_that_is_read_while_it_is_written_ends_where_reading_ended() -> None:
    """What is committed, checked and reported is what was read by then; nobody knew it when the transaction began."""
    broker, reached = Broker(), [3]

    def batches() -> Iterator[Rows]:
        yield rows(0, 2)
        reached[0] = 12
        yield rows(3, 9)

    outcome = run(broker, batches(), until=3, first_time=True, reached=lambda: reached[0])

    assert (outcome.status, outcome.until, outcome.enriched) == (Status.COMMITTED, 12, 4)
    assert broker.committed == Committed(12, "topic-id=x")
    with pytest.raises(Fatal, match="left"):
        run(Broker(), [rows(0, 3)], until=3, first_time=True, reached=lambda: 3)


def test_a_record_carries_the_inputs_headers_first_then_its_source() -> None:
    """A reader finds the input's own headers where they were."""
    broker = Broker()

    run(broker, [rows(4, headers=[("trace", b"1"), ("empty", None)])], first_time=True)

    (record,) = broker.visible()
    assert record.headers[:2] == [("trace", b"1"), ("empty", None)]
    assert record.headers[2:] == SourcePosition("in", 2, 4).headers()
    assert (record.topic, record.partition, record.timestamp, record.key) == ("out", 2, 7, b"gold-1")


def test_rows_below_the_committed_offset_are_not_written_again() -> None:
    """A range that an older attempt finished in part is resumed inside."""
    broker = Broker(committed=Committed(4, ""))

    outcome = run(broker, [rows(0, 3, 4, 9)])

    assert broker.sources() == [4, 9]
    assert (outcome.status, outcome.position) == (Status.COMMITTED, 4)


@pytest.mark.parametrize(
    ("committed", "first_time", "expected"),
    [
        (Committed(10, ""), False, Status.ALREADY_DONE),
        (Committed(11, ""), False, Status.AHEAD),
        (Committed(4, ""), False, Status.OFFSET_GAP),
        (None, False, Status.OFFSET_GAP),
        (Committed(10, ""), True, Status.ALREADY_DONE),
    ],
)
def test_locate_decides_when_there_is_nothing_to_write(
    committed: Committed | None, first_time: bool, expected: Status
) -> None:
    """Done, overtaken, or a gap: the transaction is not even begun."""
    broker = Broker(committed=committed)
    kafka = FakeTransaction(broker)

    outcome = run(broker, [rows(6)], start=5, kafka=kafka, first_time=first_time)

    assert (outcome.status, kafka.steps) == (expected, ["fence", "locate"])
    assert broker.log == []


@pytest.mark.parametrize("step", ["begin", "produce", "flush", "send-offsets"])
@pytest.mark.parametrize("error", [Abortable("x"), Fatal("x")])
def test_an_error_before_the_commit_makes_nothing_visible(step: str, error: KafkaFailure) -> None:
    """Above all after a failed send-offsets no commit follows: it would publish output without its offset."""
    broker = Broker()
    kafka = FakeTransaction(broker, (step, error))

    with pytest.raises(type(error)):
        run(broker, [rows(1, 2)], kafka=kafka, first_time=True)

    assert "commit" not in kafka.steps
    assert (broker.visible(), broker.committed) == ([], None)
    assert all(record.fate == "aborted" for record in broker.log)


@pytest.mark.parametrize("applied", [False, True])
def test_a_commit_without_an_answer_is_settled_by_the_next_attempt(applied: bool) -> None:
    """Nothing is sent after a failed commit; the next fence and locate find one of two outcomes, never a third."""
    broker = Broker()
    kafka = FakeTransaction(broker, ("commit", Fatal("no answer")), applied=applied)
    with pytest.raises(Fatal):
        run(broker, [rows(1, 2)], kafka=kafka, first_time=True)
    assert kafka.steps[-1] == "commit"

    outcome = run(broker, [rows(1, 2)], first_time=True)

    assert outcome.status is (Status.ALREADY_DONE if applied else Status.COMMITTED)
    assert broker.sources() == [1, 2]


def test_a_zombie_that_wakes_up_is_fenced_and_its_records_stay_invisible() -> None:
    """The older holder of the id can neither write nor commit after the newer one has fenced."""
    broker = Broker()
    zombie = FakeTransaction(broker)

    def wake() -> list[Rows]:
        yield rows(1)
        run(broker, [rows(1, 2)], first_time=True)
        yield rows(2)

    with pytest.raises(Fenced):
        run(broker, wake(), kafka=zombie, first_time=True)

    assert broker.sources() == [1, 2]


def test_a_full_queue_is_waited_for_and_loses_nothing() -> None:
    """BufferError means wait, not drop."""
    broker = Broker()
    kafka = FakeTransaction(broker, queue=2)

    run(broker, [rows(*range(9))], kafka=kafka, first_time=True)

    assert broker.sources() == list(range(9))
    assert kafka.waits > 0


@pytest.mark.parametrize("offsets", [(3, 2), (3, 3), (-1, 2), (2, 10)])
def test_a_reader_that_leaves_its_range_is_stopped(offsets: tuple[int, ...]) -> None:
    """Rows out of order, twice, or outside of the range mean that somebody shuffled or split the plan."""
    broker = Broker()

    with pytest.raises(Fatal, match="the reader left"):
        run(broker, [rows(*offsets)], first_time=True)

    assert broker.visible() == []


def test_order_is_checked_across_batches_too() -> None:
    """The second batch may not begin below the end of the first."""
    with pytest.raises(Fatal, match="the reader left"):
        run(Broker(), [rows(0, 5), rows(4)], first_time=True)


def test_a_reader_that_fails_half_way_makes_nothing_visible() -> None:
    """Only natural exhaustion counts as the end of a range."""
    broker = Broker()

    def broken() -> list[Rows]:
        yield rows(0, 1)
        raise OSError("the JVM went away")

    with pytest.raises(OSError, match="went away"):
        run(broker, broken(), first_time=True)

    assert (broker.visible(), broker.committed) == ([], None)


def test_a_bad_record_goes_to_the_dead_letter_topic_in_the_same_transaction() -> None:
    """Bytes unchanged, with the reason, between the input's headers and the source."""
    broker = Broker()

    outcome = run(broker, [rows(1, value=b"no json", headers=[("h", b"1")]), rows(2)], first_time=True)

    dead, good = broker.visible()
    assert (dead.topic, dead.value, dead.key, dead.timestamp) == ("dead", b"no json", b"gold-1", 7)
    assert dead.headers[0] == ("h", b"1")
    assert dict(dead.headers)[ERROR_REASON] == b"not-json"
    assert SourcePosition.of(dead.headers) == SourcePosition("in", 2, 1)
    assert (outcome.enriched, outcome.rejected, good.topic) == (1, 1, "out")


def test_a_dead_letter_that_its_topic_cannot_hold_becomes_a_reference() -> None:
    """A record too large for the dead-letter topic must not stop the pipeline for ever."""
    broker = Broker()

    run(broker, [rows(1, value=b"x" * 12_000)], first_time=True)

    (dead,) = broker.visible()
    assert dead.value is None
    assert dict(dead.headers)[ERROR_OMITTED] == b"12000"


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_crash_at_each_point_leaves_all_or_nothing_and_is_healed(point: CrashPoint) -> None:
    """The next attempt fences, locates, and the result is exactly once."""
    broker = Broker()
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


def test_a_crash_half_way_tells_how_many_records_are_in_the_log() -> None:
    """The announced number is what a read_uncommitted reader finds."""
    broker = Broker()

    with pytest.raises(CrashedOnPurposeError) as crash:
        run(broker, [rows(*range(9))], first_time=True, crash=PlannedCrash(CrashPoint.MID_PRODUCE, CrashMode.PIPELINE))

    assert crash.value.tally.enriched == len(broker.log) == 5


_trouble = st.one_of(
    st.none(),
    st.sampled_from(CrashPoint),
    st.tuples(
        st.sampled_from(["fence", "locate", "begin", "produce", "flush", "send-offsets", "commit"]), st.booleans()
    ),
)


@given(visible=st.sets(st.integers(0, 39)), troubles=st.lists(st.tuples(st.integers(1, 12), _trouble), max_size=25))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_each_visible_record_comes_out_exactly_once_in_order(
    visible: set[int], troubles: list[tuple[int, object]]
) -> None:
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
            run(broker, [batch], start, until, kafka=kafka, crash=crash, first_time=broker.committed is None)
        except (KafkaFailure, CrashedOnPurposeError):
            continue

    assert broker.sources() == sorted(visible)
    assert broker.committed == Committed(40, "topic-id=x")
