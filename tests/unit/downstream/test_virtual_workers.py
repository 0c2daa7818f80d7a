"""Virtual partitions with real threads, and on the loop's port: where reading begins, pauses, what is stored."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from harness.programs import until
from harness.records import FakeRecord as Record

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Fatal, Refused, UsageError
from brew.offsets import SourcePosition
from downstream.consume.handler import AssignedPartition, HandlerContext, PartitionBatch, RetryLater
from downstream.receive.command import DemoServer
from downstream.virtual import call
from downstream.virtual import partitions as member
from downstream.virtual.partitions import VirtualPartitions, VirtualSettings
from downstream.virtual.scheduling import OnFailure, Retries, Workers

PARTITION = 0
QUICK = Retries(attempts=3, first_s=0.001, most_s=0.002)


@dataclass
class Effects:
    """A handler that notes the numbers that it tried and did; ``before`` may wait or fail."""

    before: Callable[[Record], None] = lambda _order: None
    tried: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    given_up: list[tuple[int, int]] = field(default_factory=list)

    def handle(self, record: Record) -> None:
        self.tried.append(record.offset())
        self.before(record)
        self.done.append(record.offset())

    def give_up(self, record: Record, _error: Exception, attempts: int) -> None:
        self.given_up.append((record.offset(), attempts))


class Awaited(Deadline):
    """Sets an event as soon as somebody is about to wait with it."""

    def __init__(self, budget_s: float, event: threading.Event) -> None:
        super().__init__(budget_s)
        self._event = event

    def remaining_s(self) -> float:
        self._event.set()
        return super().remaining_s()


@contextmanager
def working(effects: Effects, orders: list[Record], **options: object) -> Iterator[VirtualPartitions]:
    """Virtual partitions with one input partition, which begins with these records."""
    settings = VirtualSettings(**{"count": 8, "retries": QUICK, **options})
    virtual = VirtualPartitions(settings, effects, threading.Event(), follow=True)
    try:
        feed(virtual, orders)
        yield virtual
    finally:
        virtual.close(Deadline(10))


def feed(virtual: VirtualPartitions, orders: list[Record]) -> None:
    begin = orders[0].offset()
    virtual.assigned([AssignedPartition("orders", "id", PARTITION, begin, 0, begin)], Deadline(5))
    virtual._add(PartitionBatch(PARTITION, begin, 0, orders))


def positions(virtual: VirtualPartitions) -> dict[int, int]:
    return {p: held.tracker.position for p, held in virtual._held.items()}


def revoked(virtual: VirtualPartitions, deadline: Deadline) -> int:
    """The position that is stored."""
    stored: dict[int, int] = {}
    virtual._report = stored.update
    virtual.revoked([PARTITION], deadline)
    return stored[PARTITION]


def poisoned(number: int, error: Exception | None = None) -> Callable[[Record], None]:
    """Fails with one record, each time."""

    def handle(order: Record) -> None:
        if order.offset() == number:
            raise error or ValueError("poison")

    return handle


def held_up(numbers: Collection[int], until: threading.Event) -> Callable[[Record], None]:
    """These records take until then."""
    return lambda order: (until.wait(20), None)[1] if order.offset() in numbers else None


def orders(count: int, keys: int = 10) -> list[Record]:
    """The first key is empty, which is not none."""
    return [Record(n, b"%d" % (n % keys) if n % keys else b"") for n in range(count)]


def test_order_per_key_is_kept_while_keys_overtake_each_other() -> None:
    chance = threading.local()

    def failing_now_and_then(_order: Record) -> None:
        count = chance.__dict__.setdefault("count", 0)
        chance.count = count + 1
        if count % 7 == 3:
            raise ConnectionError("busy")

    effects = Effects(failing_now_and_then)
    with working(effects, orders(300), retries=Retries(attempts=50, first_s=0.001, most_s=0.002)) as virtual:
        until(virtual.idle, "all effects")
        assert positions(virtual) == {PARTITION: 300}
    for key in range(10):
        assert [number for number in effects.done if number % 10 == key] == list(range(key, 300, 10))
    assert effects.done != list(range(300)), "nobody overtook anybody: no concurrency"


def test_the_position_waits_for_a_slow_record_and_what_is_finished_above_it_fills_the_partition() -> None:
    """A crash now does not skip the slow record; one that hangs lets neither memory nor repetitions grow for ever."""
    held = threading.Event()
    effects = Effects(held_up({3}, held))
    with working(effects, orders(20, keys=20), most_uncovered=17) as virtual:
        until(lambda: len(effects.done) == 19, "the others")
        assert (positions(virtual), virtual._full()) == ({PARTITION: 3}, [PARTITION])
        held.set()
        until(virtual.idle, "all")
        assert (positions(virtual), virtual._full()) == ({PARTITION: 20}, [])


GONE = member.NonRetriableError("a 400 stays one")


@pytest.mark.parametrize(("error", "attempts"), [(ValueError("poison"), 3), (GONE, 1)])
def test_a_record_that_always_fails_is_given_up_after_its_attempts(error: Exception, attempts: int) -> None:
    effects = Effects(poisoned(1, error))
    with working(effects, orders(6, keys=1)) as virtual:
        until(virtual.idle, "all")
        assert positions(virtual) == {PARTITION: 6}
    assert effects.done == [0, 2, 3, 4, 5]
    assert (effects.given_up, effects.tried.count(1)) == ([(1, attempts)], attempts)


@pytest.mark.parametrize(("number", "keys", "attempts", "count"), [(2, 1, 3, 8), (0, 6, 1, 1)], ids=["key", "any"])
def test_stop_on_failure_ends_before_the_record_and_names_it(number: int, keys: int, attempts: int, count: int) -> None:
    """Nothing of its key is begun behind it, and by a single worker nothing of any; the position stays before it."""
    effects, retries = Effects(poisoned(number)), Retries(attempts, first_s=0.001, most_s=0.002)
    with working(effects, orders(6, keys=keys), count=count, retries=retries, on_failure=OnFailure.STOP) as virtual:
        message = rf"offset {number}: failed {attempts} times?; last error: ValueError: poison"
        with pytest.raises(member.HandlerFailedError, match=message):
            until(virtual.idle, "the failure")
        virtual.close(Deadline(5))
        assert positions(virtual) == {PARTITION: number}
    assert effects.done == list(range(number))


def test_a_partition_that_goes_when_a_record_has_stopped_all_is_let_go_at_once() -> None:
    """Nobody works any more, so no hole below what was begun will close: waiting for it would use up the time."""
    with working(Effects(poisoned(0)), orders(1), on_failure=OnFailure.STOP) as virtual:
        with pytest.raises(member.HandlerFailedError):
            until(virtual.idle, "the failure")
        deadline = Deadline(5)
        assert revoked(virtual, deadline) == 0
        assert not deadline.expired()


def test_a_dead_letter_that_can_not_be_written_stops_the_workers() -> None:

    class Lost(Effects):
        def give_up(self, *_args: object) -> None:
            raise OSError("no room")

    with working(Lost(poisoned(0)), orders(1)) as virtual:
        with pytest.raises(OSError, match="no room"):
            until(virtual.idle, "the failure")
        virtual.close(Deadline(5))
        assert positions(virtual) == {PARTITION: 0}


def test_a_revoked_partition_closes_its_holes_and_begins_nothing_more() -> None:
    """What lies below the last record begun is finished, so that nothing is repeated; the rest is the next holder's."""
    held = threading.Event()
    effects = Effects(held_up({0, 5}, held))
    with working(effects, [Record(n, b"a" if n in {0, 3, 9} else b"b") for n in range(10)], count=2) as virtual:
        until(
            lambda: {0, 5} <= set(effects.tried) and len(effects.done) == 3,
            "orders 1, 2 and 4; 0 and 5 wait, 3 behind 0",
        )
        assert revoked(virtual, Awaited(10, held)) == 6
        assert positions(virtual) == {}
    assert sorted(effects.done) == [0, 1, 2, 3, 4, 5]


def test_a_revoked_partition_with_a_handler_that_hangs_is_let_go_before_its_record() -> None:
    """The next time's records do not wait for it either, and its end does not touch their tracker."""
    held = threading.Event()
    effects = Effects(held_up({7}, held))
    with working(effects, [Record(7, b"a"), Record(8, b"a")], count=2) as virtual:
        until(lambda: effects.tried == [7], "its begin")
        assert revoked(virtual, Deadline(0.01)) == 7
        feed(virtual, [Record(100, b"a")])
        until(virtual.idle, "the new time's record")
        assert positions(virtual) == {PARTITION: 101}
        held.set()
        until(lambda: len(effects.done) == 2, "the handler that hung")
        assert revoked(virtual, Deadline(10)) == 101
    assert effects.done == [100, 7], "order 8 belongs to the next holder"


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_a_record_that_keeps_failing_is_not_tried_again_once_its_partition_is_gone(how: str) -> None:
    """Its next holder has it: every further try would be an effect of a record that is somebody else's."""
    effects = Effects(poisoned(0, ConnectionError("busy")))
    retries = Retries(attempts=10**6, first_s=0.001, most_s=0.001)
    with working(effects, [Record(0, b"a"), Record(1, b"a")], count=1, retries=retries) as virtual:
        until(lambda: len(effects.tried) > 2, "a few tries")
        if how == "lost":
            virtual.lost([PARTITION])
        else:
            assert revoked(virtual, Deadline(0.01)) == 0
        tries = len(effects.tried)
        until(lambda: len(virtual._workers._queue) == 0, "the end of its tries")
        assert len(effects.tried) <= tries + 1, "the one that was running, and none behind it"
        assert set(effects.tried) == {0}
    assert (effects.done, effects.given_up) == ([], [])


def test_a_partition_that_waits_for_its_revocation_begins_no_further_record() -> None:
    """What is begun there is still finished, by another try if need be."""
    free = threading.Event()

    def failing_once(_order: Record) -> None:
        if not free.is_set():
            free.wait(20)
            raise ConnectionError("busy")

    effects = Effects(failing_once)
    with working(effects, [Record(0, b"a"), Record(1, b"a")], count=1) as virtual:
        until(lambda: effects.tried == [0], "its begin")
        assert revoked(virtual, Awaited(10, free)) == 1
    assert (effects.tried, effects.done) == ([0, 0], [0])


def test_records_without_a_key_wait_for_nobody() -> None:
    gate = threading.Barrier(4)
    effects = Effects(lambda _order: (gate.wait(20), None)[1])
    with working(effects, [Record(n, None) for n in range(4)], count=4) as virtual:
        until(virtual.idle, "all four at the barrier")
        assert positions(virtual) == {PARTITION: 4}


def test_a_handler_that_hangs_does_not_hold_the_end_for_ever() -> None:
    held = threading.Event()
    virtual = VirtualPartitions(VirtualSettings(count=2), Effects(held_up({0}, held)), threading.Event(), follow=True)
    assert [(one.name, one.daemon) for one in virtual._workers._threads] == [("virtual-0", True), ("virtual-1", True)]
    feed(virtual, orders(1))
    virtual.close(Deadline(0.05))
    assert positions(virtual) == {PARTITION: 0}
    held.set()


@pytest.mark.parametrize(("fields", "named"), [((0,), "--virtual-partitions is 0"), ((8, 4), "--most-uncovered is 4")])
def test_senseless_settings_are_refused_with_their_names(fields: tuple[int, ...], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        VirtualSettings(*fields)


def test_each_output_of_one_input_is_called_with_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver would take the second output for a repeat of the first one, and drop it."""
    monkeypatch.setattr(call, "producer", lambda *_given, **_settings: None)
    with DemoServer() as server:
        server.serving()
        caller = call.Caller(server.url, 5.0, Connection("nowhere"), "out", "out.dlq", 1)
        for index in (0, 1, 2, 1):
            caller.handle(Record(index, headers=SourcePosition("in", 0, 7, index).headers()))
        caller.close()
        server.shutdown()
    assert list(server.effects) == ["in/0/7", "in/0/7#1", "in/0/7#2"]


class Writer:
    """A producer whose brokers give these answers, None for a success; without an answer they are away."""

    def __init__(self, answers: list[KafkaError | None], written: list[int]) -> None:
        self._answers, self._written = answers, written

    def produce(self, _topic: str, value: bytes, _key: object, *, on_delivery: Any, headers: object) -> None:  # noqa: ARG002 - the library's
        self._written.append(int(value))
        self._delivered = on_delivery

    def flush(self, _timeout_s: float) -> int:
        if not self._answers:
            return 1
        self._delivered(self._answers.pop(0), None)
        return 0


TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)


def test_a_dead_letter_is_written_when_the_brokers_are_back_without_another_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage of half a minute ended the program, though its consumer would have waited for the brokers."""
    answers: list[KafkaError | None] = [TIMED_OUT]
    writers, written, told = list[Writer](), list[int](), list[str]()

    def made(*_given: object, **_settings: object) -> Writer:
        writers.append(Writer(answers, written))
        answers.extend([None] if len(writers) == 3 else [])
        return writers[-1]

    monkeypatch.setattr(call, "producer", made)
    monkeypatch.setattr(call, "to_stderr", told.append, raising=False)
    caller = call.Caller("http://nowhere", 5.0, Connection("nowhere"), "out", "out.dlq", 1)
    called: list[int] = []
    monkeypatch.setattr(caller, "handle", lambda record: called.append(record.offset()) or poisoned(0, GONE)(record))
    with working(caller, [Record(0, b"k", b"0")]) as virtual:
        until(virtual.idle, "its dead letter")
        assert positions(virtual) == {PARTITION: 1}
        assert (virtual.result.given_up, virtual.result.retries) == (1, 0)
    assert (called, written, len(writers)) == ([0], [0, 0, 0], 3)
    assert told == ["dead letter of out[3] offset 0: not acknowledged within 30 s, will try again"] * 2


def test_a_dead_letter_that_the_brokers_refuse_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    monkeypatch.setattr(call, "producer", lambda *_given, **_settings: Writer([too_large], []))
    caller = call.Caller("http://nowhere", 5.0, Connection("nowhere"), "out", "out.dlq", 1)
    with pytest.raises(Fatal, match=r"^dead letter of out\[3\] offset 0: .*MSG_SIZE_TOO_LARGE"):
        caller.give_up(Record(0, b"k", b"0"), GONE, 1)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--dead-letter", "t"], "--dead-letter is 't', the topic that is read"),
        (["--ownership", "claims", "--flow", "at-most-once"], "--flow is at-most-once, but calls that fail"),
    ],
)
def test_options_that_would_repeat_or_skip_calls_are_refused(words: list[str], named: str) -> None:
    """A dead letter would be read, fail and be written again; what was read ahead was skipped at each hand-over."""
    where = ["--url", "http://127.0.0.1:1", "--topic", "t", "--bootstrap", "127.0.0.1:1"]
    with pytest.raises(UsageError, match=named):
        call.call_command.main([*where, *words], standalone_mode=False)


@dataclass
class Scene:
    """A member, its gate for handlers, and what it told the loop."""

    gate: threading.Event = field(default_factory=threading.Event)
    paused: set[int] = field(default_factory=set)
    stored: dict[int, int] = field(default_factory=dict)
    now: float = 0.0

    def handle(self, _record: object) -> None:
        assert self.gate.wait(20)

    def give_up(self, *_: object) -> None: ...

    def make(self, *, follow: bool = True) -> VirtualPartitions:
        settings, stop = VirtualSettings(count=4, most_uncovered=20), threading.Event()
        self.virtual = VirtualPartitions(settings, self, stop, follow=follow, now=lambda: self.now)
        return self.virtual

    def reading(self, start: int, until: int, *, follow: bool = True) -> VirtualPartitions:
        """A handler that has partition 0 from ``start`` on, and has been given its records below ``until``."""
        handler = self.make(follow=follow)
        handler.assigned([assignment(0, start)], Deadline(5))
        handler.handle([records(start, until)], self.context())
        return handler

    def context(self, seconds: float = 20.0) -> HandlerContext:
        pause, resume, report = self.paused.update, self.paused.difference_update, self.stored.update
        return HandlerContext(Deadline(seconds), frozenset({0, 1}), pause, resume, report)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.gate.set()
    scene.virtual.close(Deadline(10))


def assignment(partition: int, committed: int | None, first: int = 5, last_stable: int = 30) -> AssignedPartition:
    return AssignedPartition("orders", "id", partition, committed, first, last_stable)


def records(start: int, until: int) -> PartitionBatch:
    return PartitionBatch(0, start, until, [Record(n, b"%d" % n) for n in range(start, until)])


def test_reading_begins_at_the_committed_offset_or_the_first(scene: Scene) -> None:
    handler = scene.make()
    assert handler.assigned([assignment(0, 9), assignment(1, None)], Deadline(5)) == {0: 9, 1: 5}
    handler.handle([records(9, 12)], scene.context())
    assert handler.assigned([assignment(0, 9)], Deadline(5)) == {0: 12}
    with pytest.raises(Refused, match="is 2, and retention has deleted the records before 5"):
        handler.assigned([assignment(2, 2)], Deadline(5))
    handler.revoked([0, 1, 2], Deadline(1))
    handler.lost([2])


def test_a_partition_with_enough_in_work_is_paused_and_read_on_when_there_is_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "_ROOM_S", 0.05)
    handler = scene.make()
    handler.assigned([assignment(0, 5), assignment(1, 5)], Deadline(5))
    handler.handle([records(5, 15)], scene.context())
    assert scene.paused == set()
    handler.handle([records(15, 20)], scene.context())
    assert scene.paused == {0}
    handler.tick(scene.context())
    assert (scene.paused, scene.stored) == ({0}, {0: 5, 1: 5})
    scene.gate.set()
    scene.now += 10
    until(lambda: not handler._full(), "room")
    assert handler.revoked([0], Deadline(10)) is None
    assert scene.stored[0] == 20
    handler.tick(scene.context())


def test_a_drains_end_waits_for_the_workers(scene: Scene) -> None:
    handler = scene.reading(28, 30, follow=False)
    with pytest.raises(RetryLater, match="still being processed"):
        handler.tick(scene.context(0.05))
    handler._stop.set()
    handler.tick(scene.context(1.0))  # SIGTERM ends the wait
    assert scene.stored == {0: 28}
    handler._stop.clear()
    scene.gate.set()
    handler.tick(scene.context())
    assert scene.stored == {0: 30}


def test_a_drains_end_reports_the_positions_reached_meanwhile(scene: Scene) -> None:
    """Or the loop would end the drain for want of progress, although each record gets its effect."""
    handler = scene.reading(28, 30, follow=False)
    handler._held[0].tracker = Mock(position=29, next=30, span=1, unfinished=1)
    with pytest.raises(RetryLater):
        handler.tick(scene.context(0.05))
    assert scene.stored == {0: 29}


def test_nothing_is_stored_of_a_partition_that_was_lost(scene: Scene) -> None:
    """Somebody else has it: an offset of ours could take back what they have stored."""
    handler = scene.reading(5, 8)
    handler.tick(scene.context())
    scene.stored.clear()
    handler.lost([0])
    scene.gate.set()
    scene.now += 10
    handler.tick(scene.context())
    assert scene.stored == {}


def test_partitions_that_leave_together_are_held_before_the_first_is_waited_for(scene: Scene) -> None:
    """Else a slow handler of one would let the others begin what there is no time left to finish."""
    handler = scene.make()
    handler.assigned([assignment(0, 5), assignment(1, 5)], Deadline(5))
    held, finish, limits = dict(handler._held), handler._finish_begun, []

    def watched(one: Any, deadline: Deadline) -> None:
        limits.append([one.limit for one in held.values()])
        finish(one, deadline)

    handler._finish_begun = watched
    handler.revoked([0, 1], Deadline(5))
    assert limits[0] == [-1, -1]


@pytest.mark.parametrize("how", ["lost", "revoked"])
def test_a_position_that_was_stored_before_a_partition_went_is_stored_again_when_it_comes_back(
    scene: Scene, how: str
) -> None:
    """Whether the first one was kept nobody knows: the coordinator refuses what comes from a member that is out."""
    scene.gate.set()
    handler = scene.make()
    for _ in range(2):
        assert handler.assigned([assignment(0, 5)], Deadline(5)) == {0: 5}
        handler.handle([records(5, 9)], scene.context())
        until(scene.virtual.idle, "the effects")
        scene.now += 10
        scene.stored.clear()
        handler.tick(scene.context())
        assert scene.stored == {0: 9}
        handler.lost([0]) if how == "lost" else handler.revoked([0], Deadline(5))


def test_the_first_failure_is_the_one_that_the_feeder_hears_of() -> None:
    begun, both = list[str](), threading.Barrier(2)

    def work(piece: str) -> None:
        begun.append(piece)
        both.wait(10)
        if piece == "second":
            until(lambda: workers.failed, "the first failure")
        raise KeyError(piece)

    workers: Workers[str] = Workers(2, work)
    workers.check()
    assert not workers.failed
    workers.put([("a", "first"), ("b", "second"), ("c", "third"), ("a", "fourth")])
    until(lambda: workers._running == 0 and len(begun) == 2, "both failures")
    with pytest.raises(KeyError, match="first"):
        workers.check()
    assert workers.stop(Deadline(5))
    assert sorted(begun) == ["first", "second"]
    assert all(not thread.join(5) and not thread.is_alive() for thread in workers._threads)


def test_workers_that_stop_wait_for_what_runs_and_begin_nothing_else() -> None:
    begun, free = list[str](), threading.Event()

    def work(piece: str) -> None:
        begun.append(piece)
        free.wait(10)

    workers: Workers[str] = Workers(1, work)
    workers.put([("a", "first"), ("b", "second")])
    until(lambda: begun == ["first"], "the first piece")
    assert not workers.stop(Deadline(0.01))
    assert workers.stop(rest := Awaited(5, free))
    assert not rest.expired()
    workers._threads[0].join(5)
    assert (begun, workers._threads[0].is_alive(), workers.failed) == (["first"], False, False)


def test_a_piece_that_failed_comes_again_after_its_pause_by_an_idle_worker() -> None:
    tried: list[float] = []

    def work(_piece: str) -> float | None:
        tried.append(time.monotonic())
        return 0.05 if len(tried) < 3 else None

    workers: Workers[str] = Workers(1, work)
    workers.put([("a", "piece")])
    until(lambda: len(workers._queue) == 0, "its last try")
    assert len(tried) == 3
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert 0.05 <= min(pauses) < 0.9
    assert workers.stop(Deadline(5))
