"""Write, run and kill repeatedly; then drain once and check."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from harness import enriched
from harness.downstream import LedgerStage, ReceiveStage

from brew.deadline import Deadline
from brew.fault_injection import CrashMoment
from tests.kills.bugs import BUGS

Stage = LedgerStage | ReceiveStage

ANYWHERE = "anywhere"
_ORDERS = {"ledger": (48, 12), "postgres": (48, 12), "redis-script": (24, 6), "redis": (8, 4)}
"""Per kill, and per batch: the receivers in Redis are given again what they have not yet reported to Kafka."""
_RUN_S = 60.0
_WINDOW_S = 0.6

# A process without threads or clients imports everything once, and all children are forked from it.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["downstream.__main__", "downstream.ledger.command", "downstream.receive.command", "tests.kills.bugs"]
)


@dataclass
class Killed:
    """The number of deaths by moment, and the result of the final check."""

    kills: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    seconds: float = 0.0
    findings: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Program:
    """A command line with a bug, run in new processes whose output goes to one file."""

    line: list[str]
    bug: Callable[[], None] | None
    words: Path

    def start(self, *options: str) -> ForkServerProcess:
        child = _forks.Process(target=_child, args=[[*self.line, *options], self.bug, self.words])
        child.start()
        return child

    def ended(self, child: ForkServerProcess) -> int:
        """Wait for a process; return its exit code, 0 or -9."""
        child.join(_RUN_S)
        if child.exitcode is None:
            child.kill()
        code = child.exitcode
        assert code in {0, -signal.SIGKILL}, f"a process ended with {code}:\n{self.words.read_text()[-2000:]}"
        return code


def _child(arguments: list[str], bug: Callable[[], None] | None, words: Path) -> None:
    """Run the command line, and exit as the program would."""
    from brew.cli import exit_code_of  # noqa: PLC0415 - the same
    from downstream.__main__ import downstream  # noqa: PLC0415 - in the child, where it is already loaded

    sys.stdout = sys.stderr = words.open("a", buffering=1)
    if bug is not None:
        bug()
    os._exit(exit_code_of(downstream, "downstream", arguments))


def campaign(
    stage: Stage,
    store: str,
    kills: int,
    seed: int,
    *,
    bug: str | None = None,
    moments: Sequence[str] = (*CrashMoment, ANYWHERE),
    advance: Callable[[], None] = lambda: None,
) -> Killed:
    """
    Kill ``kills`` processes of ``store`` (`ledger` or a receiver's), then drain, check, and return the result.

    Each processes newly written orders. Its death is drawn with ``seed``: at one of the moments around the commit of a
    batch, or anywhere from outside.
    """
    dice, result, began = random.Random(seed), Killed(), time.monotonic()
    orders, batch = _ORDERS[store]
    static = ["--partitions", "0,1,2,3", "--batch", str(batch), *(["--claim-s", "0.2"] if store == "redis" else [])]
    line = stage.command(*static) if isinstance(stage, LedgerStage) else stage.command(store, *static)
    with tempfile.TemporaryDirectory(prefix="brew-kills-") as folder:
        bugs = BUGS.get(store, {})
        program = _Program(line[3:], None if bug is None else bugs[bug], Path(folder) / "words")
        while sum(result.kills.values()) < kills:
            enriched.write(stage.bootstrap, stage.topic, orders, seed=result.orders, first=result.orders)
            result.orders += orders
            moment = str(dice.choice(list(moments)))
            if _killed(program, moment, dice):
                result.kills[moment] += 1
                advance()
        deadline = Deadline(_RUN_S)
        while program.ended(program.start()) != 0:
            deadline.check("the last drain")
    found = stage.check()
    result.findings, result.report, result.seconds = dict(found.findings), found.document(), time.monotonic() - began
    return result


def _killed(program: _Program, moment: str, dice: random.Random) -> bool:
    """Start a process that dies, or kill it; return False if it had finished before."""
    if moment != ANYWHERE:
        dying = ["--crash-point", moment, "--crash-prob", "0.6", "--crash-seed", str(dice.randrange(10**6))]
        return program.ended(program.start(*dying)) != 0
    child = program.start()
    child.join(dice.uniform(0, _WINDOW_S))
    child.kill()  # does nothing if it has already ended
    return program.ended(child) != 0
