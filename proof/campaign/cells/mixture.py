"""Everything at once: a new mixture of faults every half minute, with a quarter of the time quiet."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from brew.errors import BrewError
from proof.campaign.cell import BOTH, CONNECTOR, DIRECT, CellTable, Need
from proof.campaign.cells.broker import move_leaders, whole
from proof.campaign.cells.kafka import take_id
from proof.campaign.cells.writer import died
from proof.campaign.cluster import CLIENTS
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment

CELLS = CellTable(moment="always", needs={Need.SANDBOX, Need.THREE, Need.NETWORKS})
_ROUND_S, _BEAT_S, _QUIET, _MOST = 30.0, 2.0, 0.25, 3
# Effects of all kinds of faults: some transactions are fenced, some aborted with records in the log.
_ABORTED = {"fences": 1, "aborted_records": 1}


@dataclass
class _Writers:
    """The writer that always runs, and is restarted when it is gone."""

    stage: CellEnvironment
    now: Program | None = None
    rivals: list[Program] = field(default_factory=list)

    def running(self) -> Program | None:
        return self.now if self.now is not None and self.now.code() is None else None

    def ensure_running(self) -> None:
        if not self.running():
            self.now = self.stage.writer("--follow", "--max-records-per-transaction", "200")

    def kill(self) -> None:
        if writer := self.running():
            writer.kill()
            died(self.stage, writer)

    def rival(self) -> None:
        if not any(rival.code() is None for rival in self.rivals):
            self.rivals.append(self.stage.writer("--follow", name="rival"))
            self.stage.fire("rivals")


def _kill_broker(stage: CellEnvironment, _writers: _Writers) -> None:
    """Kill one broker at a time: two would cost the quorum, which has its own cell."""
    if not stage.sandbox.down():
        stage.sandbox.kill(stage.random.choice(stage.sandbox.brokers))
        stage.fire("broker_kills")
    else:
        stage.sandbox.restart(*stage.sandbox.down())


def _pause_broker(stage: CellEnvironment, _writers: _Writers) -> None:
    victims = [broker for broker in stage.sandbox.brokers if broker not in stage.sandbox.down()]
    victim = stage.random.choice(victims)
    stage.sandbox.pause(victim)
    stage.fire("broker_pauses")
    stage.pause(stage.random.uniform(0.5, 5.0))
    stage.sandbox.resume(victim)


def _cut(stage: CellEnvironment, _writers: _Writers) -> None:
    victim = stage.random.choice(stage.sandbox.brokers)
    peers: list[int | str] = [broker for broker in stage.sandbox.brokers if broker != victim]
    others: list[int | str] = stage.random.choice([[CLIENTS], peers])
    stage.sandbox.cut(victim, *others)
    stage.fire("cuts")
    stage.pause(stage.random.uniform(0.5, 5.0))
    stage.sandbox.heal()


def _move(stage: CellEnvironment, _writers: _Writers) -> None:
    move_leaders(stage, stage.random.choice(stage.names.topics()), stage.random.randrange(9))
    stage.fire("storms")


def _freeze_writer(stage: CellEnvironment, writers: _Writers) -> None:
    if writer := writers.running():
        writer.signal(signal.SIGSTOP)
        stage.fire("pauses")
        writers.rival()
        stage.pause(stage.random.uniform(0.5, 4.0))
        writer.signal(signal.SIGCONT)


def _hijack(stage: CellEnvironment, _writers: _Writers) -> None:
    take_id(stage, stage.names.transactional_id(stage.random.randrange(stage.cell.partitions)))
    stage.fire("hijacks")


FAULTS: dict[str, Callable[[CellEnvironment, _Writers], None]] = {
    "broker_kills": _kill_broker,
    "broker_pauses": _pause_broker,
    "cuts": _cut,
    "storms": _move,
    "kills": lambda _stage, writers: writers.kill(),
    "pauses": _freeze_writer,
    "rivals": lambda _stage, writers: writers.rival(),
    "hijacks": _hijack,
}


def mixture(minutes: float, stage: CellEnvironment) -> None:
    """Each round picks a few kinds of faults and injects one every two seconds; at its end, everything is healed."""
    minutes = stage.minutes or minutes
    end = time.monotonic() + minutes * 60
    writers = _Writers(stage)
    left = list(FAULTS)
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writers.ensure_running()
        while time.monotonic() < end:
            if len(left) < _MOST:
                left = list(FAULTS)
            kinds = [] if stage.random.random() < _QUIET else stage.random.sample(left, _MOST)
            left = [kind for kind in left if kind not in kinds]
            _round(stage, writers, kinds, min(end, time.monotonic() + _ROUND_S))
            stage.sandbox.heal()
            whole(stage)
            stage.stop_running(writers.rivals)
            if stage.cell.reader == BOTH and (writer := writers.running()):
                stage.stop(writer)  # the next one uses the other reader
            writers.ensure_running()
            stage.recovered(time.time())
            stage.journals.forget()
            stage.fire("rounds")


def _round(stage: CellEnvironment, writers: _Writers, kinds: list[str], end: float) -> None:
    while time.monotonic() < end:
        if kinds:
            # Admin calls fail while the cluster is broken, as intended.
            with contextlib.suppress(BrewError):
                FAULTS[stage.random.choice(kinds)](stage, writers)
        writers.ensure_running()
        stage.pause(min(_BEAT_S, max(0.1, end - time.monotonic())))


for _name, _minutes, _readers, _marks, _needed in (
    ("F38-mixture", 5.0, (CONNECTOR, DIRECT), "", {"rounds": 5, **_ABORTED}),
    ("F38-mixture-short", 1.0, (CONNECTOR, DIRECT), "prove", {"rounds": 2}),
    ("soak-F38", 60.0, (BOTH,), "soak", dict.fromkeys((*FAULTS, "connector_writers", "direct_writers"), 1) | _ABORTED),
):
    _fault = f"random mixture of {len(FAULTS)} kinds, {_minutes:g} minutes"
    _cells = partial(CELLS, readers=_readers, needed=_needed, limit_s=_minutes * 60 + 600, marks=_marks)
    _cells(_name, _fault, "all", _minutes)(mixture)
