"""Writers that hang and come back, and writers that fight over the same partitions."""

from __future__ import annotations

import functools
import signal
import time

from brew.journal import Entry, Phase, Step
from proof.campaign.cell import Cell
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment

_TRIES = 2000
_ROUNDS = 8
_FENCED_S = 5.0
_RANGES = ("--max-records-per-transaction", "1000")

# The last line of a partition that tells where its transaction stands.
_WHERE = {
    "mid-produce": {(Step.BEGIN, Phase.DONE), (Step.FLUSH, Phase.INTENT)},
    "sending-offsets": {(Step.SEND_OFFSETS, Phase.INTENT)},
    "committing": {(Step.COMMIT, Phase.INTENT)},
}


def freeze(stage: CellEnvironment, writer: Program, moment: str) -> dict[int, float]:
    """SIGSTOP the writer, again and again, until it stands at ``moment``; its partitions there, and since when."""
    for _ in range(_TRIES):
        writer.signal(signal.SIGSTOP)
        at = time.time()
        time.sleep(0.003)
        stage.journals.look()
        last: dict[int, Entry] = {e.fields["partition"]: e for e in stage.journals.entries if e.pid == writer.pid}
        found = {p: at for p, e in last.items() if (e.step, e.phase) in _WHERE[moment]}
        if found:
            stage.fire("pauses")
            return found
        writer.signal(signal.SIGCONT)
        time.sleep(stage.random.uniform(0.001, 0.03))
    return {}


def zombie(moment: str, stage: CellEnvironment) -> None:
    """A writer hangs at ``moment``, another takes over, the first one wakes up and must find itself fenced."""
    with stage.feeding(600):
        stage.orders(2000, "--transactional")
        for _ in range(_ROUNDS):
            sleeper = stage.writer("--follow", *_RANGES, name="sleeper")
            stage.await_commits(4)
            frozen = freeze(stage, sleeper, moment)
            rival = stage.writer("--follow", *_RANGES, name="rival")
            if frozen:
                stage.recovered(max(frozen.values()), frozen)
            sleeper.signal(signal.SIGCONT)
            if fenced(stage, sleeper):
                stage.fire("zombies_fenced")
            stage.stop(sleeper)
            stage.stop(rival)
            if stage.fired["zombies_fenced"]:
                return


def fenced(stage: CellEnvironment, writer: Program) -> bool:
    """Whether the writer is told within 5 s that a newer one holds its id."""
    end = time.monotonic() + _FENCED_S
    while time.monotonic() < end:
        stage.journals.look()
        mine = (e for e in stage.journals.entries if e.pid == writer.pid and e.phase is Phase.FAILED)
        if any(str(e.fields.get("detail")).startswith("Fenced") for e in mine):
            return True
        time.sleep(0.01)
    return False


def overslept(stage: CellEnvironment) -> None:
    """The writer hangs for longer than its transaction lives; the broker aborts it, and the writer starts over."""
    with stage.feeding():
        writer = stage.writer("--follow", *_RANGES, "--transaction-timeout", "5")
        stage.await_commits(4)
        frozen = freeze(stage, writer, "sending-offsets")
        # The coordinator looks for expired transactions every ten seconds.
        stage.pause(5 + 10 + 2)
        woken = time.time()
        writer.signal(signal.SIGCONT)
        stage.recovered(woken, frozen or None)


def two_writers(seconds: float, stage: CellEnvironment) -> None:
    """Two writers follow with one group; they fence each other, and everything comes out once."""
    with stage.feeding(600):
        first, second = (stage.writer("--follow", *_RANGES, name=name) for name in ("first", "second"))
        stage.await_commits(4)
        stage.pause(seconds)
        for writer in (first, second):
            if writer.code() is not None:
                stage.notes.append(f"{writer.name} ended with {writer.code()}: {writer.last_words()}")
        stage.fire("rivals", 2)


def _zombie_cell(moment: str) -> Cell:
    return Cell(
        name=f"F04-{moment}",
        row="F04",
        fault="SIGSTOP until another took over, then SIGCONT",
        target="writer",
        moment=moment,
        play=functools.partial(zombie, moment),
        needed={"pauses": 1, "zombies_fenced": 1},
        bound_s=5.0,
        limit_s=180.0,
        marks=frozenset({"prove"}) if moment == "mid-produce" else frozenset(),
    )


CELLS = (
    *map(_zombie_cell, _WHERE),
    Cell(
        name="F05-overslept",
        row="F05",
        fault="SIGSTOP for longer than the transaction's time-out",
        target="writer",
        moment="sending-offsets",
        play=overslept,
        needed={"pauses": 1, "aborted_records": 1},
        bound_s=15.0,
    ),
    Cell(
        name="F08-two-writers",
        row="F08",
        fault="two writers, one group, 60 s",
        target="writer",
        moment="always",
        play=functools.partial(two_writers, 60.0),
        needed={"rivals": 2, "fences": 1},
        limit_s=180.0,
    ),
    Cell(
        name="F08-two-writers-short",
        row="F08",
        fault="two writers, one group, 15 s",
        target="writer",
        moment="always",
        play=functools.partial(two_writers, 15.0),
        needed={"rivals": 2, "fences": 1},
        marks=frozenset({"prove"}),
    ),
    Cell(
        name="F10-old-checkpoint",
        row="F10",
        fault="checkpoint restored, deleted, or newer than the group",
        target="Spark",
        moment="start",
        play=lambda _stage: None,
        path="spark",
        not_applicable="there is no Spark checkpoint; the group's offset is the only truth",
    ),
)
