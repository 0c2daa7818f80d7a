"""Frames that come late, lost replies, slow networks: the wire proxy stands between the writer and its brokers."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from brew.deadline import Deadline
from brew.journal import Entry, Phase, Step
from brew.names import TransactionalId
from proof.campaign.cell import Cell
from proof.campaign.cells.writer import died
from proof.campaign.stage import CellEnvironment
from proof.wire.codec import Api, error_name
from proof.wire.proxy import WireProxy
from proof.wire.rules import NO_DELAY, Action, NetworkConditions, Rule, Side

_ROUNDS = 10
_CAUGHT_S = 30.0
_SLOW_S, _NOTICED_S = 20.0, 0.025
SLOWED = "slowed_steps"
_RANGES = ("--max-records-per-transaction", "100")


@contextmanager
def between(stage: CellEnvironment, shape: NetworkConditions = NO_DELAY) -> Iterator[WireProxy]:
    """A block in which writers reach the brokers through the proxy; readers and the checker do not."""
    with WireProxy(stage.cluster.bootstrap, shape=shape, seed=stage.seed) as proxy:
        stage.bootstrap = proxy.bootstrap
        try:
            yield proxy
            stage.stop_writers()
        finally:
            stage.bootstrap = stage.cluster.bootstrap
            stage.doubts += [f"the proxy could not read a frame: {failure}" for failure in proxy.failures]


def _name(stage: CellEnvironment) -> str:
    return str(TransactionalId(stage.names.group, stage.names.input, stage.partition))


def late(api: Api, stage: CellEnvironment) -> None:
    """
    Hold a frame, cut its connection, let the next transaction of the same id write, release the frame into it.

    A broker can't tell a late frame from a new one unless the epoch does; ours changes with every transaction.
    """
    answers: Counter[str] = Counter()
    with between(stage) as proxy, stage.feeding(600):
        stage.orders(1000, "--transactional")
        stage.writer("--follow", *_RANGES)
        stage.await_commits(4)
        for _ in range(_ROUNDS):
            committed = True if api is Api.END_TXN else None
            held = proxy.add(Rule(api, transactional_id=_name(stage), committed=committed, cut=True))
            held.caught(Deadline(_CAUGHT_S))
            # The first of these frames belongs to the same attempt, unless that one is past it.
            nth = 2 if api is Api.PRODUCE else 1
            inside = proxy.add(Rule(Api.ADD_OFFSETS_TO_TXN, transactional_id=_name(stage), nth=nth))
            inside.caught(Deadline(_CAUGHT_S))
            at = time.time()
            held.release()
            error = held.answered(Deadline(_CAUGHT_S)).error
            answers["nothing" if error is None else error_name(error)] += 1
            stage.fire("late_frames")
            inside.release()
            proxy.remove(held)
            proxy.remove(inside)
            stage.recovered(at, [stage.partition])
    stage.notes.append("the late frames were answered with " + ", ".join(f"{n} x{c}" for n, c in answers.items()))


def lost_reply(api: Api, stage: CellEnvironment) -> None:
    """The broker did what it was asked, and the connection breaks before it can say so."""
    with between(stage) as proxy, stage.feeding(600):
        stage.orders(1000, "--transactional")
        stage.writer("--follow", *_RANGES)
        stage.await_commits(4)
        for _ in range(_ROUNDS):
            trap = proxy.add(Rule(api, Action.CUT, Side.REPLY, transactional_id=_name(stage)))
            trap.caught(Deadline(_CAUGHT_S))
            at = time.time()
            stage.fire("lost_replies")
            proxy.remove(trap)
            stage.recovered(at, [stage.partition])


def killed_in_commit(stage: CellEnvironment, *, released: bool) -> None:
    """The writer dies with its commit on the way; the commit arrives, or does not: the next one sees which."""
    if stage.cell.bug:  # without any committed position the next run would refuse, and break nothing
        stage.orders(200)
        stage.drain()
    with between(stage) as proxy, stage.feeding(300):
        stage.orders(1000, "--transactional")
        for _ in range(stage.kills):
            trap = proxy.add(Rule(Api.END_TXN, transactional_id=_name(stage), committed=True))
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
    """Everything takes longer, and comes out all the same."""
    with between(stage, shape), stage.feeding(100):
        stage.orders(500, "--transactional")
        stage.writer("--follow")
        stage.await_commits(4, _CAUGHT_S * 2)
        stage.pause(_SLOW_S)
        stage.journals.look()
        stage.fire(SLOWED, slowed(stage.journals.entries, shape))


def slowed(entries: Iterable[Entry], shape: NetworkConditions) -> int:
    """Steps that took as long as the network asks for, there and back, at the least."""
    wait = max(2 * (shape.latency_s - shape.jitter_s), shape.retransmit_s if shape.loss else 0.0, _NOTICED_S)
    begun: dict[tuple[int, int, Step], float] = {}
    found = 0
    for one in entries:
        if one.step is Step.READ:
            continue
        what = one.pid, one.fields["partition"], one.step
        if one.phase is Phase.INTENT:
            begun[what] = one.at
        elif one.phase is Phase.DONE and what in begun:
            found += one.at - begun.pop(what) >= wait
    return found


def _late_cell(row: str, word: str, api: Api, *marks: str) -> Cell:
    return Cell(
        name=f"{row}-late-{word}",
        row=row,
        fault=f"{word} held, its connection cut, released inside the next transaction",
        target="wire",
        moment="next transaction",
        play=functools.partial(late, api),
        path="proxy",
        needed={"late_frames": _ROUNDS},
        limit_s=240.0,
        marks=frozenset(marks),
    )


def _reply_cell(word: str, api: Api) -> Cell:
    return Cell(
        name=f"F13-lost-reply-{word}",
        row="F13",
        fault=f"reply of {word} lost, connection cut",
        target="wire",
        moment="reply",
        play=functools.partial(lost_reply, api),
        path="proxy",
        needed={"lost_replies": _ROUNDS},
        bound_s=20.0,
        limit_s=240.0,
    )


def _commit_cell(*, released: bool) -> Cell:
    word = "released" if released else "dropped"
    return Cell(
        name=f"F02-commit-{word}",
        row="F02",
        fault=f"SIGKILL, then the commit is {word}",
        target="writer",
        moment="commit-in-flight",
        play=functools.partial(killed_in_commit, released=released),
        path="proxy",
        needed={"kills": 0},
        bound_s=15.0,
        limit_s=600.0,
        marks=frozenset({"prove"}),
    )


def _commit_control() -> Cell:
    """The same with a pipeline whose position is no part of the records' transaction: they come out again."""
    return replace(
        _commit_cell(released=True),
        name="F02-commit-released-control",
        target="a writer that sends offsets in a transaction of their own (control)",
        bound_s=None,
        expected="violated",
        bug="offset-in-a-transaction-of-its-own",
        breaks="duplicate-output",
    )


def _slow_cell(word: str, fault: str, shape: NetworkConditions) -> Cell:
    return Cell(
        name=f"F20-{word}",
        row="F20",
        fault=fault,
        target="network",
        moment="always",
        play=functools.partial(slow, shape),
        path="proxy",
        needed={SLOWED: 10},
        limit_s=240.0,
    )


CELLS = (
    _commit_cell(released=True),
    _commit_cell(released=False),
    _commit_control(),
    _late_cell("F11", "end-txn", Api.END_TXN, "prove"),
    _late_cell("F12", "txn-offset-commit", Api.TXN_OFFSET_COMMIT),
    _late_cell("F12", "produce", Api.PRODUCE),
    _reply_cell("init-producer-id", Api.INIT_PRODUCER_ID),
    _reply_cell("add-offsets", Api.ADD_OFFSETS_TO_TXN),
    _reply_cell("end-txn", Api.END_TXN),
    _slow_cell("latency", "300 ms each way, +-100 ms", NetworkConditions(latency_s=0.3, jitter_s=0.1)),
    _slow_cell("loss", "5 % of frames wait for a retransmission", NetworkConditions(loss=0.05)),
    _slow_cell("jitter", "25 ms +-25 ms", NetworkConditions(latency_s=0.025, jitter_s=0.025)),
    _slow_cell("rate", "1 Mbit/s", NetworkConditions(rate=125_000.0)),
)
