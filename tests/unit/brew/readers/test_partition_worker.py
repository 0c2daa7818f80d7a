"""One partition in a worker's hands: what it does with its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from harness.fakes import log_record
from harness.lease_coordinator import worker_settings

from brew.attempt import AttemptSpec, Job
from brew.errors import Fatal
from brew.kafka.clients import FULL_MS
from brew.kafka.log_reader import IDLE_MS, FetchedRecords
from brew.outcome import Outcome, Status
from brew.range_transaction import Rows, Targets
from brew.readers.direct import worker
from brew.readers.direct.messages import Grant, WorkerSettings
from brew.readers.direct.worker import CHUNK, ConcurrencyLimit, SharedLimits, TransactionInput
from brew.settings import CrashSettings, Limits, ProfilesSettings
from brew.transaction_sizing import TransactionSize
from pipeline.transformation import OrderEnrichment

START = 100
SETTINGS = worker_settings()
GRANT = Grant(0, START, Targets("out", "dlq", 0, 0))
SIZE = TransactionSize.at_most(1000, 60.0)
WAIT_S = 20.0


class FakeTail:
    """Has one record, or none where ``empty``. Tells when it was opened and read."""

    opened: threading.Semaphore
    taken: threading.Event
    empty = False

    def __init__(self, *_: object) -> None:
        self._left = 0 if self.empty else 1
        self.opened.release()

    def take(self, *_: object) -> FetchedRecords | None:
        self.taken.set()
        self._left -= 1
        return FetchedRecords([], START + 1, 0) if self._left >= 0 else None

    def close(self) -> None: ...


@pytest.fixture
def tail(monkeypatch: pytest.MonkeyPatch) -> type[FakeTail]:
    class Fresh(FakeTail):
        opened, taken = threading.Semaphore(0), threading.Event()

    monkeypatch.setattr(worker, "TailReader", Fresh)
    monkeypatch.setattr(worker, "attempt", lambda *_: Outcome(0, START, START + 1, Status.COMMITTED))
    return Fresh


class Held:
    """One partition, held in a thread of its own; whether it has begun, what it reported, and where it ended."""

    def __init__(self, limits: SharedLimits, grant: Grant = GRANT) -> None:
        self.begun, self.stop = threading.Event(), threading.Event()
        self.reported, self.position = list[Outcome](), list[int]()
        self._limits, self._grant = limits, grant
        self.thread = threading.Thread(target=self._hold, daemon=True)
        self.thread.start()

    def _hold(self) -> None:
        callbacks = self.begun.set, self.reported.append
        self.position.append(worker.transact_partition(self._grant, SETTINGS, 1, *callbacks, self.stop, self._limits))

    def end(self) -> None:
        self.stop.set()
        self._limits.reading.wake()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def limited(kind: str, size: TransactionSize = SIZE) -> SharedLimits:
    """Limits of a process in which one partition at a time does this."""
    limits = SharedLimits(size)
    setattr(limits, kind, ConcurrencyLimit(1, 60.0))
    return limits


def test_who_is_told_to_stop_while_it_waits_for_its_turn_begins_nothing(tail: type[FakeTail]) -> None:
    """64 partitions that each did one more transaction, one after another, would outlast the grace of a SIGTERM."""
    limits = limited("transactions")
    with limits.transactions.turn():
        held = Held(limits)
        assert tail.taken.wait(WAIT_S)
        held.stop.set()
    held.end()
    assert (held.position, held.reported, held.begun.is_set()) == ([START], [], False)


def test_a_backlog_waits_for_its_turn_to_be_read(tail: type[FakeTail]) -> None:
    """A reader costs threads, and of 64 that are full 60 wait for a turn; it is opened when it is needed."""
    limits, drained = limited("reading"), replace(GRANT, goal=START + 1)
    with limits.reading.turn():
        waiting, called_back = Held(limits, drained), Held(limits, drained)
        following = Held(limits)
        assert tail.opened.acquire(timeout=WAIT_S), "who follows hears of news in every partition"
        called_back.end()
        assert called_back.position == [START]
        assert not tail.opened.acquire(timeout=0.1)
    waiting.thread.join(WAIT_S)
    assert waiting.position == [START + 1]
    following.end()


def test_a_reader_with_nothing_to_read_keeps_no_other_from_reading(tail: type[FakeTail]) -> None:
    """Upstream's open transaction may hold a partition back for minutes."""
    limits, tail.empty = limited("reading"), True
    both = [Held(limits, replace(GRANT, goal=START + 1)) for _ in range(2)]
    for _ in both:
        assert tail.opened.acquire(timeout=WAIT_S)
    for held in both:
        held.end()


def test_a_size_that_others_have_learned_counts(tail: type[FakeTail], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told that it has begun by then: the operator's page counts open transactions."""
    limits, most = limited("transactions", TransactionSize.at_most(100_000, 60.0)), list[int]()
    original = worker.TransactionInput

    def measured(*args: Any) -> TransactionInput:
        most.append(args[2])
        return original(*args)

    monkeypatch.setattr(worker, "TransactionInput", measured)
    with limits.transactions.turn():
        held = Held(limits, replace(GRANT, goal=START + 1))
        assert tail.taken.wait(WAIT_S)
        limits.sizes.apply_outcome(Outcome(1, 0, 20_000, Status.COMMITTED, seconds=1.0))
        assert not held.begun.wait(0.1)
    held.thread.join(WAIT_S)
    assert (most, held.begun.is_set()) == ([40_000], True)


@dataclass
class Lease:
    """
    One partition whose records are taken up to each of ``firsts`` in turn, and what comes of each transaction.

    ``more``: first end -> how far that transaction reads on by itself. After the last one the worker is told to stop.
    """

    grant: Grant = GRANT
    settings: WorkerSettings = SETTINGS
    firsts: tuple[int, ...] = (START + 1,)
    statuses: tuple[Status, ...] = ()
    more: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    stops_after: int | None = None
    unreadable: bool = False

    def __post_init__(self) -> None:
        self.stop = threading.Event()
        self.limits = SharedLimits(TransactionSize.at_most(self.settings.max_records, 60.0))
        self.offers, self.reported, self.log = list[AttemptSpec](), list[Outcome](), list[str]()
        self.takes, self.opened = list[tuple[int, float]](), list[tuple[Any, ...]]()
        self._ends, self._at = iter(self.firsts), self.grant.start

    def open(self, *arguments: Any) -> Lease:
        self.opened.append(arguments)
        return self

    def take(self, most: int, _most_bytes: int, wait_s: float) -> FetchedRecords | None:
        self.takes.append((most, wait_s))
        if self.unreadable:
            raise Fatal("read of orders[0]: the position is not in the log any more")
        end = next(self._ends, None) if wait_s else self.more.pop(self._at, None)
        if end is None:
            if wait_s:
                self.stop.set()
            return None
        self._at = end
        return FetchedRecords([], end, 1)

    def close(self) -> None:
        self.log.append("closed")

    def attempt(self, offer: AttemptSpec, batches: list[Rows], _job: Job) -> Outcome:
        assert list(batches) == []
        self.log.append("attempt")
        self.offers.append(offer)
        status = dict(enumerate(self.statuses)).get(len(self.offers) - 1, Status.COMMITTED)
        until = offer.reached() if status is Status.COMMITTED else offer.offered.until
        return Outcome(0, offer.offered.start, until, status, seconds=self.seconds)

    def report(self, outcome: Outcome) -> None:
        self.log.append(outcome.status.value)
        self.reported.append(outcome)
        if len(self.reported) == self.stops_after:
            self.stop.set()

    def work(self) -> int:
        """Hold it to the end of the lease; the position then."""
        begun: Callable[[], None] = lambda: self.log.append("begun")  # noqa: E731 - one connection tells it
        return worker.transact_partition(self.grant, self.settings, 3, begun, self.report, self.stop, self.limits)

    def ranges(self) -> list[tuple[int, int]]:
        return [(one.offered.start, one.offered.until) for one in self.offers]


NOT_DONE = [one for one in Status if one not in {Status.COMMITTED, Status.ALREADY_DONE}]
THREE = (START + 1, START + 2, START + 3)
Leased = Callable[..., Lease]


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> Leased:
    """A lease of these fields, whose reader and transactions it plays itself."""

    def make(grant: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **more: Any) -> Lease:
        lease = Lease(replace(GRANT, **grant or {}), replace(SETTINGS, **settings or {}), **more)
        monkeypatch.setattr(worker, "TailReader", lease.open)
        monkeypatch.setattr(worker, "attempt", lease.attempt)
        return lease

    return make


@pytest.mark.parametrize("status", NOT_DONE)
@pytest.mark.parametrize(("goal", "done"), [(None, 0), (START + 1, 0), (START + 3, 0), (None, 1)])
def test_a_lease_ends_before_what_is_not_done(leased: Leased, status: Status, goal: int | None, done: int) -> None:
    """To go on behind it would leave the range out; a drain whose last range failed would end with code 0."""
    lease = leased({"goal": goal}, firsts=THREE, statuses=(*[Status.COMMITTED] * done, status))
    assert lease.work() == START + done
    assert lease.ranges() == [(START, START + 1), (START + 1, START + 2)][: done + 1]
    assert [one.status for one in lease.reported] == [*[Status.COMMITTED] * done, status], "the driver hears of both"


def test_what_is_done_already_is_passed_and_the_lease_goes_on(leased: Leased) -> None:
    """A crash between commit and report: the next worker finds it done, and works on."""
    lease = leased(firsts=THREE, statuses=(Status.ALREADY_DONE,))
    assert lease.work() == START + 3
    assert lease.ranges() == [(START, START + 1), (START + 1, START + 2), (START + 2, START + 3)]


@pytest.mark.parametrize("first_time", [True, False])
@pytest.mark.parametrize("exempt", [True, False])
@pytest.mark.parametrize("first", [Status.COMMITTED, Status.ALREADY_DONE])
def test_only_the_first_transaction_of_a_lease_may_find_no_position_or_be_exempt_from_a_crash(
    leased: Leased, first_time: bool, exempt: bool, first: Status
) -> None:
    """Behind it the group stands somewhere; an offset that vanishes later must not count as a first time."""
    certain = {"crash": CrashSettings(probability=1.0)}
    lease = leased({"first_time": first_time, "exempt_from_crash": exempt}, certain, firsts=THREE, statuses=(first,))
    lease.work()
    assert [one.first_time for one in lease.offers] == [first_time, False, False]
    # A run whose workers die of the first one could not heal; one that is always exempt would never crash.
    assert [one.crash is None for one in lease.offers] == [exempt, False, False]


@pytest.mark.parametrize(
    ("goal", "begun"), [(START - 1, 0), (START, 0), (START + 1, 1), (START + 2, 2), (START + 3, 3)]
)
def test_a_drain_ends_at_its_goal_and_not_one_transaction_later(leased: Leased, goal: int, begun: int) -> None:
    lease = leased({"goal": goal}, firsts=(*THREE, START + 4))
    assert lease.work() == START + begun
    assert lease.log == ["begun", "attempt", "committed"] * begun + ["closed"]


def test_a_transaction_begins_where_the_one_before_it_ended(leased: Leased) -> None:
    """Each reads on while it is written, so its end is not that of its first records."""
    lease = leased(firsts=(START + 1, START + 8), more={START + 1: START + 7, START + 8: START + 20})
    assert lease.work() == START + 20
    assert lease.ranges() == [(START, START + 1), (START + 7, START + 8)]
    assert [(one.start, one.until) for one in lease.reported] == [(START, START + 7), (START + 7, START + 20)]


def test_who_is_called_back_between_two_transactions_begins_no_other(leased: Leased) -> None:
    """And does not read on: another worker may have the partition as soon as this one has left it."""
    lease = leased(firsts=THREE, stops_after=2)
    assert lease.work() == START + 2
    assert (len(lease.offers), [most for most, wait_s in lease.takes if wait_s]) == (2, [1000, 1000])


def test_after_a_slow_transaction_the_next_one_takes_less(leased: Leased) -> None:
    """40 s of a 60 s time-out for 1000 offsets: 20 s allow 400 of them, by what is held in reserve."""
    lease = leased(firsts=(START + 1000, START + 1001), seconds=40.0)
    lease.work()
    assert [most for most, wait_s in lease.takes if wait_s][:2] == [1000, 400]


@pytest.mark.parametrize("most", [CHUNK - 1, CHUNK, CHUNK + 1])
def test_what_a_transaction_begins_with_is_one_chunk_at_most(leased: Leased, most: int) -> None:
    lease = leased(settings={"max_records": most})
    lease.work()
    assert lease.takes[0][0] == min(most, CHUNK)


def test_with_profiles_all_is_read_before_the_transaction_begins(leased: Leased) -> None:
    """What would be read later may be newer than the table of customers, which is read when it begins."""
    settings = {"max_records": CHUNK + 5, "transformation": OrderEnrichment(Limits(), ProfilesSettings())}
    lease = leased(settings=settings, more={START + 1: START + 9})
    assert lease.work() == START + 1
    assert (lease.takes[0][0], [one for one in lease.takes if not one[1]]) == (CHUNK + 5, [])


@pytest.mark.parametrize(("goal", "idle_ms"), [(None, worker.IDLE_FOLLOWING_MS), (START + 1, IDLE_MS)])
def test_a_drain_asks_more_often_than_who_follows(leased: Leased, goal: int | None, idle_ms: int) -> None:
    lease = leased({"goal": goal})
    lease.work()
    assert (lease.opened[0][6], lease.takes[0][1] > 0.1) == (idle_ms, goal is None)


def test_a_partition_that_cant_be_read_is_told_and_its_reader_closed(leased: Leased) -> None:
    lease = leased(unreadable=True)
    with pytest.raises(Fatal, match="not in the log any more"):
        lease.work()
    assert lease.log == ["closed"]


def test_a_reader_that_has_something_to_do_again_counts_again(leased: Leased, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all partitions of a backlog would be read at once when upstream's transaction has ended."""
    lease, counted = leased({"goal": START + 1}), list[bool]()
    lease.limits.reading = ConcurrencyLimit(1, 60.0)
    pieces = iter([None, FetchedRecords([], START + 1, 1)])
    monkeypatch.setattr(lease, "take", lambda *_: next(pieces, None))
    monkeypatch.setattr(lease, "report", lambda _: counted.append(lease.limits.reading._wait_s() > 0))
    assert lease.work() == START + 1
    assert counted == [True]


def test_a_wait_for_acknowledgements_lets_another_produce(leased: Leased, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel enters it around each wait, with the turn of this transaction."""
    entered = list[AbstractContextManager[None]]()

    def attempt(offer: AttemptSpec, batches: Any, _job: Job) -> Outcome:
        rows = iter(batches)
        next(rows)
        with offer.waiting() as inside, lease.limits.producing.turn():
            entered.append(inside)
        rows.close()
        return Outcome(0, START, START + 1, Status.FAILED)

    lease = leased()
    lease.limits.producing = ConcurrencyLimit(1, 60.0)
    monkeypatch.setattr(worker, "attempt", attempt)
    monkeypatch.setattr(lease, "take", lambda *_: FetchedRecords([log_record(START)], START + 1, 1))
    thread = threading.Thread(target=lease.work, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert len(entered) == 1, "it had no turn within the other's wait"


@pytest.mark.parametrize(
    ("share", "readers", "ahead_mib", "rest_ms"),
    [
        (1, 1, 64, FULL_MS),
        (4, 4, 16, FULL_MS),
        (64, 8, 1, FULL_MS),
        (32, 32, 2, 32),
        (64, 64, 1, 50),
        (999, 999, 1, 50),
    ],
)
def test_many_readers_fetch_less_ahead_and_rest_longer(share: int, readers: int, ahead_mib: int, rest_ms: int) -> None:
    """A lone busy one among them still gets 20 MiB a second."""
    ahead, rest = worker.read_ahead(64 * 1024 * 1024, share, readers)
    assert (ahead, rest) == (ahead_mib * 1024 * 1024, rest_ms)
    assert ahead / rest >= 20 * 1024 * 1024 / 1000


@pytest.mark.usefixtures("tail")
def test_a_full_disk_of_the_journal_is_no_error_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range is tried again, and the run ends by its patience, with the reason."""

    def full(*_: object) -> Outcome:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker, "attempt", full)
    held = Held(SharedLimits(SIZE))
    held.thread.join(WAIT_S)
    assert held.reported[0].status is Status.FAILED
    assert held.reported[0].detail == "OSError: [Errno 28] No space left on device; --journal is None"


@pytest.mark.usefixtures("tail")
def test_an_exception_that_is_no_error_ends_the_run_like_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its thread ends without a word, and the driver waits forever for the partition."""

    def interrupted(*_: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "attempt", interrupted)
    held = Held(SharedLimits(SIZE))
    held.thread.join(WAIT_S)
    assert [outcome.status for outcome in held.reported] == [Status.TRANSFORM_FAILED]
    assert "the transformation raised KeyboardInterrupt (test_partition_worker.py, line" in held.reported[0].detail
    assert held.position == [START]
