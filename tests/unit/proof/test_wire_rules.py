"""Rules, shapes and verdicts: pure, without a socket."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator

import pytest

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, UsageError
from proof.wire.codec import Api, Details, Head
from proof.wire.late import Attempt, AttemptState, RecordPlacement, Try, anomalies, tally
from proof.wire.rules import Action, CaughtFrame, DelayedChannel, NetworkConditions, Rule, Side, Trap

HEAD = Head(Api.END_TXN, 1, 7, "rdkafka")
COMMIT = Details("t", 1, 0, committed=True)
ABORT = Details("t", 1, 0, committed=False)


@pytest.fixture
def trap() -> Iterator[Callable[[Rule], Trap]]:
    """A trap outside of any proxy."""
    loop = asyncio.new_event_loop()
    yield lambda rule: Trap(rule, 1, loop)
    loop.close()


def test_the_nth_frame_that_fits_is_taken_and_only_that(trap: Callable[[Rule], Trap]) -> None:
    """Counted from 1, frames that do not fit are not counted."""
    third = trap(Rule(Api.END_TXN, nth=3, committed=True))
    fits = [third.takes(Side.REQUEST, HEAD, said) for said in (COMMIT, ABORT, COMMIT, COMMIT, COMMIT)]
    assert fits == [False, False, False, True, False]
    assert (third.seen, third.fired) == (4, 1)


def test_a_standing_rule_takes_every_frame(trap: Callable[[Rule], Trap]) -> None:
    """`times` 0 is for ever."""
    always = trap(Rule(Api.END_TXN, Action.DROP, times=0))
    assert all(always.takes(Side.REQUEST, HEAD, COMMIT) for _ in range(5))


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (Rule(Api.END_TXN), True),
        (Rule(Api.PRODUCE), False),
        (Rule(Api.END_TXN, side=Side.REPLY), False),
        (Rule(Api.END_TXN, transactional_id="u"), False),
        (Rule(Api.END_TXN, client_id="rdkafka"), True),
        (Rule(Api.END_TXN, client_id="java"), False),
        (Rule(Api.END_TXN, committed=False), False),
    ],
)
def test_every_field_of_a_rule_narrows_it(rule: Rule, *, fits: bool) -> None:
    """A commit of id `t` by client `rdkafka`."""
    assert rule.fits(Side.REQUEST, HEAD, COMMIT) is fits


@pytest.mark.parametrize("given", [{"api": "EndTxm"}, {"api": "EndTxn", "nth": 0}, {"api": 26, "x": 1}, {"times": 2}])
def test_a_rule_that_makes_no_sense_is_refused(given: dict[str, object]) -> None:
    """With a sentence, before a proxy starts."""
    with pytest.raises(UsageError):
        Rule.of(given)


def test_a_rule_is_read_from_json_by_the_protocols_names() -> None:
    """As `EndTxn`, `end-txn` or `26`."""
    wanted = Rule(Api.END_TXN, Action.CUT, Side.REPLY, nth=2)
    for name in ("EndTxn", "end-txn", "26"):
        assert Rule.of({"api": name, "action": "cut", "side": "reply", "nth": 2}) == wanted


def test_waiting_for_a_frame_that_never_comes_ends_with_the_deadline(trap: Callable[[Rule], Trap]) -> None:
    """And tells which frame."""
    with pytest.raises(DeadlineExceeded, match="END_TXN"):
        trap(Rule(Api.END_TXN)).caught(Deadline(0.01))


def test_what_a_rule_caught_is_handed_over(trap: Callable[[Rule], Trap]) -> None:
    """Connection, head, details."""
    one = trap(Rule(Api.END_TXN))
    one.catch(CaughtFrame(3, HEAD, COMMIT), lambda: None)
    assert one.caught(Deadline(1)) == CaughtFrame(3, HEAD, COMMIT)


class _Sink:
    """Notes when what was written."""

    def __init__(self) -> None:
        self.got: list[tuple[float, bytes]] = []

    def write(self, data: bytes) -> None:
        self.got.append((time.monotonic(), data))

    def is_closing(self) -> bool:
        return False

    async def drain(self) -> None: ...
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


def test_a_slow_line_keeps_order_and_time() -> None:
    """20 ms +-10 ms, and 100 kB/s: 2,000 bytes take 20 ms more; the order of frames is never changed."""

    async def send() -> tuple[float, _Sink]:
        sink = _Sink()
        line = DelayedChannel(sink, random.Random(1))  # type: ignore[arg-type]  # as far as a line needs a writer
        shape = NetworkConditions(latency_s=0.02, jitter_s=0.01, rate=100_000)
        began = time.monotonic()
        for number in range(20):
            await line.put(bytes([number]) * 100, shape)
        await line.close()
        return began, sink

    began, sink = asyncio.run(send())
    bodies = [(at, data[0]) for at, data in sink.got if len(data) == 100]
    assert [number for _, number in bodies] == list(range(20))
    assert bodies[0][0] - began >= 0.01
    assert bodies[-1][0] - began >= 0.03


def test_a_shape_out_of_bounds_is_refused() -> None:
    """A loss of 2 is a mistake, not a network."""
    with pytest.raises(UsageError):
        NetworkConditions(loss=2)


SEEN, UNSEEN = RecordPlacement(5, 1, 0, visible=True), RecordPlacement(5, 1, 0, visible=False)
TWICE = RecordPlacement(5, 1, 0, visible=True, copies=2)


@pytest.mark.parametrize(
    ("fate", "places", "name"),
    [
        (AttemptState.COMMITTED, [SEEN, SEEN], None),
        (AttemptState.COMMITTED, [SEEN, UNSEEN], "lost-commit"),
        (AttemptState.COMMITTED, [UNSEEN, UNSEEN], "lost-commit"),
        (AttemptState.GIVEN_UP, [UNSEEN, UNSEEN], None),
        (AttemptState.GIVEN_UP, [SEEN, SEEN], "torn-txn"),
        (AttemptState.UNKNOWN, [SEEN, SEEN], None),
        (AttemptState.UNKNOWN, [UNSEEN, UNSEEN], None),
        (AttemptState.UNKNOWN, [SEEN, UNSEEN], "torn-txn"),
        (AttemptState.COMMITTED, [SEEN, TWICE], "duplicate-output"),
    ],
)
def test_a_transaction_is_visible_as_its_writer_was_told(
    fate: AttemptState, places: list[RecordPlacement], name: str | None
) -> None:
    """All or nothing, and all when the commit was acknowledged."""
    attempt = Attempt("second", ["a", "b"], 7 if fate is AttemptState.COMMITTED else None, fate)
    found = anomalies(Try(0, "late-commit", [attempt], position=7), dict(zip("ab", places, strict=True)))
    assert [one.name for one in found] == ([name] if name else [])


@pytest.mark.parametrize(("position", "name"), [(7, None), (6, "offset-regression"), (8, "offset-ahead")])
def test_the_position_is_the_last_acknowledged_one(position: int, name: str | None) -> None:
    """Behind it is a regression; beyond it somebody skipped."""
    attempt = Attempt("first", ["a"], 7, AttemptState.COMMITTED)
    found = anomalies(Try(0, "late-offsets", [attempt], position=position), {"a": SEEN})
    assert [one.name for one in found] == ([name] if name else [])


def test_a_try_whose_late_frame_found_no_answer_proves_nothing() -> None:
    """It is inconclusive, however clean it looks; and so is one with trouble."""
    clean = Attempt("first", ["a"], 7, AttemptState.COMMITTED)
    tries = [
        Try(0, "s", [clean], late=47, position=7),
        Try(1, "s", [clean], late=None, position=7),
        Try(2, "s", [clean], late=47, position=7, trouble="time-out"),
        Try(3, "s", [clean], late=0, position=6),
    ]
    told = tally(tries, {"a": SEEN}, {47: "INVALID_PRODUCER_EPOCH", 0: "ok"})
    assert (told.tries, told.clean, told.inconclusive, told.broken) == (4, 1, 2, 1)
    assert told.late == {"INVALID_PRODUCER_EPOCH": 2, "no answer": 1, "ok": 1}
