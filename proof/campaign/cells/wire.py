"""Late frames, lost replies and slow networks, by a proxy between writer and brokers; the proxy's own experiments."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from brew.connection import Connection
from brew.deadline import Deadline
from brew.journal import Entry, Phase, Step
from proof.campaign.cell import CellTable, nothing
from proof.campaign.cells.writer import died
from proof.campaign.stage import CellEnvironment
from proof.wire.codec import Api, error_name
from proof.wire.late import AttemptState
from proof.wire.proxy import WireProxy
from proof.wire.rules import NO_DELAY, Action, NetworkConditions, Rule, Side
from proof.wire.torn import F11, experiment

CELLS = CellTable(path="proxy", limit_s=240.0)
_ROUNDS, _TRIES_PER_KILL, _CAUGHT_S = 10, 10, 60.0
# Of 20 s, the other cells' time-out, a first transaction spends 16 on the round trips before its confirmation.
_DEFAULT_TIMEOUT = ("--transaction-timeout", "60")
_SLOW_START_S = 120.0
"""A run makes some sixty round trips before its first fence: 40 s at 600 ms each."""
_SLOW_S, _NOTICED_S = 20.0, 0.025
SLOWED = "slowed_steps"
_RANGES = ("--max-records-per-transaction", "100")
in_commit = partial(CELLS, moment="commit-in-flight", needed={"kills": 0}, limit_s=600.0, marks="prove")


@contextmanager
def between(stage: CellEnvironment, shape: NetworkConditions = NO_DELAY) -> Iterator[WireProxy]:
    """Within the block, writers reach the brokers through the proxy; readers and the checker do not."""
    with WireProxy(stage.cluster.bootstrap, shape=shape, seed=stage.seed) as proxy:
        stage.bootstrap = proxy.bootstrap
        try:
            yield proxy
            stage.stop_writers()
        finally:
            stage.bootstrap = stage.cluster.bootstrap
            stage.doubts += [f"the proxy could not read a frame: {failure}" for failure in proxy.failures]


class LateFrame(NamedTuple):
    """A frame that arrived too late: when, the broker's answer, and by how many epochs."""

    released_at: float
    answer: str
    epochs_behind: int


def deliver_late(proxy: WireProxy, api: int, transactional_id: str) -> LateFrame:
    """Hold a frame, cut its connection, and release it into the id's next transaction: only its epoch is older."""
    committed = True if api is Api.EndTxn else None
    late = proxy.add(Rule(api, transactional_id=transactional_id, committed=committed, cut=True))
    caught = late.caught(Deadline(_CAUGHT_S))
    # The first of these frames belongs to the same attempt, unless that one is past it.
    nth = 2 if api is Api.Produce else 1
    inside = proxy.add(Rule(Api.AddOffsetsToTxn, transactional_id=transactional_id, nth=nth))
    try:
        following = inside.caught(Deadline(_CAUGHT_S))
        released_at = time.time()
        late.release()
        error = late.answered(Deadline(_CAUGHT_S)).error
    finally:
        proxy.remove(inside)
        proxy.remove(late)
    answer = "nothing" if error is None else error_name(error)
    return LateFrame(released_at, answer, following.details.epoch - caught.details.epoch)


def late(api: int, stage: CellEnvironment) -> None:
    """Frames of the writer arrive inside its next transaction (`deliver_late`)."""
    answers: Counter[str] = Counter()
    with between(stage) as proxy, stage.at_work(*_RANGES):
        for _ in range(_ROUNDS):
            frame = deliver_late(proxy, api, stage.transactional_id)
            answers[frame.answer] += 1
            stage.fire("late_frames")
            stage.recovered(frame.released_at, [stage.partition])
    stage.notes.append("the late frames were answered with " + ", ".join(f"{n} x{c}" for n, c in answers.items()))


for _row, _word, _api in (
    ("F11", "end-txn", Api.EndTxn),
    ("F12", "txn-offset-commit", Api.TxnOffsetCommit),
    ("F12", "produce", Api.Produce),
):
    CELLS(
        *(f"{_row}-late-{_word}", f"{_word} held, its connection cut, released inside the next transaction"),
        *("wire", _api),
        moment="next transaction",
        needed={"late_frames": _ROUNDS},
        marks="prove" if _api is Api.EndTxn else "",
    )(late)


def lost_reply(api: int, stage: CellEnvironment) -> None:
    """The broker executes the request, and the connection breaks before it can respond."""
    with between(stage) as proxy, stage.at_work(*_RANGES):
        for _ in range(_ROUNDS):
            trap = proxy.add(Rule(api, Action.CUT, Side.REPLY, transactional_id=stage.transactional_id))
            trap.caught(Deadline(_CAUGHT_S))
            lost = time.time()
            stage.fire("lost_replies")
            proxy.remove(trap)
            stage.recovered(lost, [stage.partition])


for _word, _api in (
    ("init-producer-id", Api.InitProducerId),
    ("add-offsets", Api.AddOffsetsToTxn),
    ("end-txn", Api.EndTxn),
):
    _cells = partial(CELLS, moment="reply", needed={"lost_replies": _ROUNDS}, bound_s=20.0)
    _cells(f"F13-lost-reply-{_word}", f"reply of {_word} lost, connection cut", "wire", _api)(lost_reply)


@in_commit(
    "F02-commit-released-control",  # its position is not part of the records' transaction: they are written again
    "SIGKILL, then the commit is released",
    *("a writer that sends offsets in a transaction of their own (control)", True),
    bug="offset-in-a-transaction-of-its-own",
    breaks="duplicate-output",
)
@in_commit("F02-commit-dropped", "SIGKILL, then the commit is dropped", "writer", False, bound_s=15.0)
@in_commit("F02-commit-released", "SIGKILL, then the commit is released", "writer", True, bound_s=15.0)
def killed_in_commit(released: bool, stage: CellEnvironment) -> None:
    """The writer dies with its commit in flight; the commit arrives, or does not: the next one sees which."""
    if stage.cell.bug:  # without any committed position, the next run would refuse, and break nothing
        stage.orders(200)
        stage.drain()
    with between(stage) as proxy, stage.feeding(300):
        stage.orders(1000, "--transactional")
        for _ in range(stage.kills):
            trap = proxy.add(Rule(Api.EndTxn, transactional_id=stage.transactional_id, committed=True))
            writer = stage.writer("--follow", *_RANGES)
            trap.caught(Deadline(_CAUGHT_S))
            writer.kill()
            died(stage, writer)
            if released:
                trap.release()
            else:
                trap.drop()
            proxy.remove(trap)
            following = stage.writer("--follow", *_RANGES)
            stage.recovered(stage.killed[-1].at, [stage.partition])
            stage.stop(following)


def slow(shape: NetworkConditions, stage: CellEnvironment) -> None:
    """A slow network delays every step, and still all orders come out once."""
    with between(stage, shape), stage.at_work(*_DEFAULT_TIMEOUT, feed=100, orders=500, seconds=_SLOW_START_S):
        stage.pause(_SLOW_S)
        stage.fire(SLOWED, slowed(stage.journals.look(), shape))


def slowed(entries: Iterable[Entry], shape: NetworkConditions) -> int:
    """Count the steps that took at least the shortest round trip under these conditions."""
    wait = max(2 * (shape.latency_s - shape.jitter_s), shape.retransmit_s if shape.loss else 0.0, _NOTICED_S)
    begun: dict[tuple[int, int, Step], float] = {}
    count = 0
    for entry in entries:
        if entry.step is Step.READ:
            continue
        what = entry.pid, entry.fields["partition"], entry.step
        if entry.phase is Phase.INTENT:
            begun[what] = entry.at
        elif entry.phase is Phase.DONE and what in begun:
            count += entry.at - begun.pop(what) >= wait
    return count


for _word, _fault, _shape in (
    ("latency", "300 ms each way, +-100 ms", NetworkConditions(latency_s=0.3, jitter_s=0.1)),
    ("loss", "5 % of frames wait for a retransmission", NetworkConditions(loss=0.05)),
    ("jitter", "25 ms +-25 ms", NetworkConditions(latency_s=0.025, jitter_s=0.025)),
    ("rate", "1 Mbit/s", NetworkConditions(rate=125_000.0)),
):
    CELLS(f"F20-{_word}", _fault, "network", _shape, moment="always", needed={SLOWED: 10})(slow)


# The proxy's own experiments: scripts of `proof.wire.late`, each with a writer that must break, and with ours.
TARGETS = {
    "strict": "writer",
    "reuse": "a writer that reuses its producer (control)",
    "plain": "a writer without sequence numbers (control)",
}
_HELD = "held, connection cut, released inside the next transaction"
_LOST = "written, their reply lost, connection cut"


def _experiment(
    what: str, scripts: Sequence[str], writer: str, bootstrap: str, seed: int, kills: int
) -> dict[str, Any]:
    """Run one experiment; return what it found, as fields of the cell's result."""
    tries = _TRIES_PER_KILL * kills
    result = experiment(Connection(bootstrap), writer, tries, scripts, seed=seed)
    tally, visible = result.tally, sum(place.visible for place in result.log.values())
    states = Counter(attempt.state for tried in result.tries for attempt in tried.attempts)
    return {
        "fault": what,
        "verdict": result.verdict,
        "fired": {"late_frames": tries - tally.late["no answer"], "broken": tally.broken},
        "needed": {"late_frames": tries},
        "counts": {
            "outputs": visible,
            "committed_transactions": states[AttemptState.COMMITTED],
            "aborted_transactions": states[AttemptState.GIVEN_UP],
            "aborted_records": len(result.log) - visible,
        },
        "anomalies": [
            {"name": found.name, "topic": "output", "partition": 0, **asdict(found)}
            | {"evidence": f"try {number}: {found.evidence}"}
            for number, found in tally.first
        ],
        "doubts": tally.troubles,
        "note": f"late frames answered: {dict(tally.late)}; {tally.broken} of {tally.tries} tries broken",
    }


for _row, _word, _scripts, _control, _fault, _moment in (
    ("F11", "end-txn", F11, "reuse", _HELD, "next transaction"),
    ("F12", "offsets", ("late-offsets",), "reuse", _HELD, "next transaction"),
    ("F12", "records", ("late-records",), "plain", _HELD, "next transaction"),  # a reused producer is protected here
    ("F13", "records", ("lost-records-reply",), "plain", _LOST, "reply"),
):
    for _writer, _suffix in ((_control, "control"), ("strict", "strict")):
        _run = partial(_experiment, f"{_word} {_fault}", _scripts, _writer)
        _cells = partial(CELLS, readers=(), moment=_moment, limit_s=600.0, marks="prove" if _row == "F11" else "")
        _cells(f"{_row}-{_word}-{_suffix}", _fault, TARGETS[_writer], experiment=_run)(nothing)
