"""Eight members of 64 partitions as programs, the log that they write, and what they hold at each of its positions."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Collection, Iterator

from proof.campaign.programs import Program
from proof.campaign.stage import Stage
from proof.claims.history import History, View
from proof.claims.watching import Watching
from protocol.deadline import Deadline
from protocol.kafka import operate

MEMBERS, PARTITIONS, INTERVAL_S = 8, 64, 1.0
_SHOWN = 5
_ASK_S = 20.0
_SPREAD_S = 40.0


class Claimants:
    """``options`` go to each of them; names are never used twice."""

    def __init__(self, stage: Stage, *options: str) -> None:
        self.stage, self._options = stage, options
        self.topic = f"{stage.names.stem}.claims"
        self.watching = Watching(stage.cluster.connection, self.topic)
        self.programs: dict[str, Program] = {}
        self._gone: set[str] = set()
        self._all: dict[str, Program] = {}

    @property
    def history(self) -> History:
        return self.watching.history

    def start(self, *options: str) -> str:
        """One more member; its name."""
        name = f"member-{len(self._all)}"
        words = ["--bootstrap", self.stage.cluster.bootstrap, "--claims", self.topic, "--client-id", name]
        words += ["--partitions", str(PARTITIONS), "--interval-s", str(INTERVAL_S)]
        words += [*self._options, *options]
        program = self.stage.programs.python(name, "proof", "claims-member", *words)
        self._all[name] = self.programs[name] = program
        return name

    def has(self, name: str) -> set[int]:
        """What the log gives to a member now."""
        return {partition for partition, owner in self.history.owners().items() if owner == name}

    def settle(self, among: Collection[str] | None = None) -> None:
        """Wait until all partitions are owned, and evenly so, by the members that run (or by ``among``)."""
        names = set(self.programs if among is None else among)

        def settled() -> bool:
            found = list(self.history.owners().values())
            shares = [found.count(name) for name in names]
            return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

        self.stage.until(settled, f"an even share for each of {len(names)} members", _SPREAD_S)

    def any_owner(self) -> str:
        return self.stage.random.choice(sorted(name for name in self.programs if self.has(name)))

    def await_rest(self, name: str) -> None:
        """Wait until a member has told once more what it holds: it does so at the end of a turn, and rests then."""
        program, told = self.programs[name], len(self.programs[name].printed())
        self.stage.until(lambda: len(program.printed()) > told, f"a word of {name}", _SPREAD_S)

    def taken_over(self, victim: str, since: float, what: set[int]) -> None:
        """Wait until others own all that the victim had; keep the seconds since its last sign of life."""
        self.stage.until(lambda: not what & self.has(victim), f"others own what {victim} had", _SPREAD_S)
        self.stage.recovery_s.append(time.time() - since)

    def kill(self, name: str) -> tuple[float, set[int]]:
        """SIGKILL; the moment, and what it had."""
        had = self.has(name)
        self.programs.pop(name).kill()
        self._gone.add(name)
        self.stage.fire("kills")
        return time.time(), had

    def die(self, name: str) -> None:
        """SIGKILL, and wait until others own what it had."""
        self.taken_over(name, *self.kill(name))

    def end(self) -> None:
        """SIGTERM to all that run: each has to end well."""
        for name, program in self.programs.items():
            program.terminate()
            program.signal(signal.SIGCONT)
            if (code := program.wait(Deadline(_ASK_S))) != 0:
                self.stage.findings.append({"name": "member-ended", "evidence": f"{name}: {program.last_words()}"})
                self.stage.notes.append(f"{name} ended with {code}")

    def judge(self) -> None:
        """Whatever a member held that was not its own is a finding, and two of one position are among them."""
        views = [view for program in self._all.values() for view in _views(program)]
        wrong = self.history.misled(views)
        self.stage.findings += [{"name": "two-owners", "evidence": text} for text in wrong[:_SHOWN]]
        if len(wrong) > _SHOWN:
            self.stage.notes.append(f"{len(wrong)} findings, the first {_SHOWN} shown")
        counts = self.history.counts
        self.stage.counts |= {"messages": self.history.next, "views": len(views), "misled": len(wrong), **counts}
        for what in ("takeovers", "late", "held"):
            self.stage.fire(what, counts[what])
        self.stage.fire("views", len(views))


@contextlib.contextmanager
def claimants(stage: Stage, *options: str) -> Iterator[Claimants]:
    """Eight members at work; behind the block they are ended, and what they held is judged."""
    found = Claimants(stage, *options)
    try:
        with found.watching:
            for _ in range(MEMBERS):
                found.start()
            found.settle()
            yield found
            found.end()
        found.judge()
    finally:
        for program in found.programs.values():
            program.kill()
        operate.delete_topics(stage.cluster.admin, [found.topic], Deadline(_ASK_S))


def _views(program: Program) -> Iterator[View]:
    """What it printed; a line that a kill cut off is left out."""
    for line in program.printed().splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("["):
            client, position, held = json.loads(line)
            yield View(client, position, {int(partition): token for partition, token in held.items()})
