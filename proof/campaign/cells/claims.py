"""Claims: members and drivers are killed, paused, given wrong clocks, and lose the log's past."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from functools import partial

from brew.deadline import Deadline
from brew.kafka import cluster_admin
from proof.campaign.cell import CONNECTOR, DIRECT, CellTable, Need
from proof.campaign.journals import is_commit
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError
from proof.claims.history import MemberView
from proof.claims.members import ClaimsFollower

MEMBERS, PARTITIONS, INTERVAL_S = 8, 64, 1.0
# Two intervals, plus the time to read the log, to claim and, for drivers, to commit the first transaction.
_DRIVERS, _DRIVER_S = 2, 1.0
_TAKEN_S, _FIRST_COMMIT_S = 2 * INTERVAL_S + 2.0, 2 * _DRIVER_S + 3.0
_NEW_LEADER_S = 15.0  # as in rows F14 and F17
CELLS = CellTable(path="claims", readers=(), bound_s=_TAKEN_S, limit_s=900.0, judged=False)
_SHOWN, _SPREAD_S, _ROUNDS_PER_KILL = 5, 40.0, 10
_SHORT, _LONG, _ASK_S, _START_S = 2, 8, 20.0, 60.0
_SNAPSHOT_RECORDS, _KEPT = 200, 100
_SKEWS = (("--skew-s", "60"), ("--skew-s", "-60"), ("--rate", "0.6"), ("--rate", "1.6"))
_TWO_STAND_BY = "the one of two drivers that works is killed, the other stands by"
_TWO_SHARE = "one of two drivers that share by claims is killed"


class ClaimMembers:
    """The members of a cell; ``options`` are passed to each of them, and names are never reused."""

    def __init__(self, stage: CellEnvironment, *options: str) -> None:
        self.stage, self._options = stage, options
        self.topic = f"{stage.names.stem}.claims"
        self.watching = ClaimsFollower(stage.cluster.connection, self.topic)
        self.history = self.watching.history
        self.programs: dict[str, Program] = {}
        self._all: dict[str, Program] = {}

    def start(self, *options: str) -> str:
        """Start one more member; return its name."""
        name = f"member-{len(self._all)}"
        words = ["--bootstrap", self.stage.cluster.bootstrap, "--claims", self.topic, "--client-id", name]
        words += ["--partitions", str(PARTITIONS), "--interval-s", str(INTERVAL_S), *self._options, *options]
        program = self.stage.programs.python(name, "proof", "claims-member", *words)
        self._all[name] = self.programs[name] = program
        return name

    def has(self, name: str) -> set[int]:
        """Return the partitions that a member owns according to the log."""
        return {partition for partition, owner in self.history.owners().items() if owner == name}

    def settle(self) -> None:
        """Wait until all partitions are owned, evenly distributed over the running members."""

        def settled() -> bool:
            owners = list(self.history.owners().values())
            shares = [owners.count(name) for name in self.programs]
            return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

        self.stage.until(settled, f"an even share for each of {len(self.programs)} members", _SPREAD_S)

    def any_owner(self) -> str:
        return self.stage.random.choice(sorted(name for name in self.programs if self.has(name)))

    def await_rest(self, name: str) -> None:
        """Wait until a member prints what it holds: it does so at the end of a turn, just before it sleeps."""
        program, printed = self.programs[name], len(self.programs[name].printed())
        self.stage.until(lambda: len(program.printed()) > printed, f"output of {name}", _SPREAD_S)

    def taken_over(self, victim: str, since: float, what: set[int]) -> None:
        """Wait until others own all that the victim had; record the seconds since its last sign of life."""
        self.stage.until(lambda: not what & self.has(victim), f"a takeover of the partitions of {victim}", _SPREAD_S)
        self.stage.recovery_s.append(time.time() - since)

    def kill(self, name: str) -> tuple[float, set[int]]:
        """Send SIGKILL to a member; return the time, and the partitions that it had."""
        had = self.has(name)
        self.programs.pop(name).kill()
        self.stage.fire("kills")
        return time.time(), had

    def die(self, name: str) -> None:
        """Send SIGKILL to a member, and wait until others own what it had."""
        self.taken_over(name, *self.kill(name))

    def end(self) -> None:
        """Send SIGTERM to all running members: each must exit with 0."""
        for name, program in self.programs.items():
            program.terminate()
            program.signal(signal.SIGCONT)
            if (code := program.wait(Deadline(_ASK_S))) != 0:
                self.stage.find("member-ended", f"{name}: {program.last_output()}")
                self.stage.notes.append(f"{name} ended with {code}")

    def judge(self) -> None:
        """Report every partition that a member held although the log assigned it to another member or to none."""
        views = [view for program in self._all.values() for view in _views(program)]
        wrong = self.history.misled(views)
        for text in wrong[:_SHOWN]:
            self.stage.find("two-owners", text)
        if len(wrong) > _SHOWN:
            self.stage.notes.append(f"{len(wrong)} findings, the first {_SHOWN} shown")
        counts = self.history.counts
        self.stage.counts |= {"messages": self.history.next, "views": len(views), "misled": len(wrong), **counts}
        for what in ("takeovers", "late", "held"):
            self.stage.fire(what, counts[what])
        self.stage.fire("views", len(views))


@contextlib.contextmanager
def claimants(stage: CellEnvironment, *options: str) -> Iterator[ClaimMembers]:
    """Run eight members within the block; on exit, stop them and check what they held."""
    members = ClaimMembers(stage, *options)
    try:
        with members.watching:
            for _ in range(MEMBERS):
                members.start()
            members.settle()
            yield members
            members.end()
        members.judge()
    finally:
        for program in members.programs.values():
            program.kill()
        cluster_admin.delete_topics(stage.cluster.admin, [members.topic], Deadline(_ASK_S))


def _views(program: Program) -> Iterator[MemberView]:
    """Yield what a member printed; a line truncated by a kill is skipped."""
    for line in program.printed().splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("["):
            client, position, held = json.loads(line)
            yield MemberView(client, position, {int(partition): token for partition, token in held.items()})


def _times(stage: CellEnvironment) -> int:
    """Return how often to repeat the fault: twice in a short round, up to eight times in a long one."""
    return max(min(stage.kills, _SHORT), min(_LONG, stage.kills // _LONG))


@CELLS("F34-races", "8 claimants race for 64 partitions", "claimant", needed={"rounds": 1, "winners": 2}, bound_s=None)
def races(stage: CellEnvironment) -> None:
    """Eight claimants want 64 partitions at the same moment, round after round; the races' own judge reads the log."""
    rounds = _ROUNDS_PER_KILL * stage.kills
    words = ("claims-races", "--bootstrap", stage.cluster.bootstrap, "--rounds", str(rounds), "--seed", str(stage.seed))
    result = stage.programs.python("races", "proof", *words, "--json").report(stage.deadline)
    for text in result["findings"]:
        stage.find("two-owners", text)
    stage.counts |= {"messages": result["messages"], "grants": sum(result["wins"].values())}
    stage.fire("rounds", result["rounds"])
    stage.fire("winners", len(result["wins"]))
    stage.notes.append(f"all owned after {result['owned_after_s']['p50']} s (p50), {result['owned_after_s']['max']} s")


@CELLS(
    "F34-believers-control",  # after waking up, they ignore what they have lost
    "SIGSTOP past two heartbeats, then SIGCONT",
    *("a claimant that keeps what it lost (control)", "--believing"),
    needed=("pauses",),
    breaks="two-owners",
)
@CELLS(
    *("F34-sleepers", "SIGSTOP past two heartbeats, then SIGCONT", "claimant", ""),
    marks="prove",
    needed={"pauses": 1, "takeovers": 1, "late": 1, "views": 8},
)
def sleepers(option: str, stage: CellEnvironment) -> None:
    """An owner sleeps past two heartbeats; others take what it had, and when it wakes, its writes have no effect."""
    with claimants(stage, *option.split()) as members:
        for _ in range(_times(stage)):
            victim = members.any_owner()
            members.await_rest(victim)  # stopped within a turn, it could wake up to others' claims and not write
            had, asleep = members.has(victim), time.time()
            members.programs[victim].signal(signal.SIGSTOP)
            members.taken_over(victim, asleep, had)
            stage.fire("pauses")
            members.programs[victim].signal(signal.SIGCONT)
            members.settle()


@CELLS(
    *("F34-wrong-clocks", "clocks 60 s off, or too fast, or too slow; SIGKILL", "claimant"),
    needed={"wrong_clocks": len(_SKEWS), "kills": 1, "takeovers": 1, "views": 8},
)
def wrong_clocks(stage: CellEnvironment) -> None:
    """Four members have clocks that are a minute off or run at the wrong speed; owners among them are killed."""
    with claimants(stage) as members:
        for skew in _SKEWS:
            members.start(*skew)
            stage.fire("wrong_clocks")
        members.settle()
        for _ in range(_times(stage)):
            members.die(members.any_owner())
            members.settle()


@CELLS(
    *("F34-broker-restarts", "the log's broker and a claimant killed", "claimant and broker"),
    needs={Need.SANDBOX, Need.THREE},
    needed={"broker_kills": 1, "kills": 1, "takeovers": 1, "views": 8},
    bound_s=_TAKEN_S + _NEW_LEADER_S,
)
def broker_restarts(stage: CellEnvironment) -> None:
    """The broker that leads the log dies while a part of it is claimed; then it comes back."""
    with claimants(stage) as members:
        for _ in range(_times(stage)):
            killed, had = members.kill(victim := members.any_owner())
            leader = cluster_admin.leaders(stage.cluster.admin, members.topic, Deadline(_ASK_S))[0]
            stage.sandbox.kill(leader)
            stage.fire("broker_kills")
            members.taken_over(victim, killed, had)
            stage.sandbox.restart(leader)
            members.start()
            members.settle()


@CELLS(
    *("F34-short-memory", "the log's past deleted, as by retention; SIGKILL", "claims topic"),
    needed={"pasts_deleted": 1, "snapshots_gone": 1, "kills": 1, "takeovers": 1, "views": 8},
)
def short_memory(stage: CellEnvironment) -> None:
    """Old records of the log are deleted, snapshots and claims included; members die, and others join."""
    with claimants(stage, "--snapshot-records", str(_SNAPSHOT_RECORDS)) as members:
        for _ in range(_times(stage)):
            members.die(members.any_owner())
            stage.until(lambda: members.history.counts["snapshots"] > 0, "a snapshot", 60.0)
            past = {0: members.history.next - _KEPT}
            cluster_admin.delete_records(stage.cluster.admin, members.topic, past, Deadline(_ASK_S))
            stage.fire("pasts_deleted")
            members.start()
            members.settle()
        stage.fire("snapshots_gone", members.history.counts["snapshots"] - members.watching.snapshots_left())


def driver(stage: CellEnvironment, mode: str, number: int, *spark: str) -> Program:
    """Start a pipeline in standby or sharing mode; without Spark unless ``spark`` names a master."""
    words = ["--follow", mode, "--claims", f"{stage.names.stem}.claims", "--claim-interval", str(_DRIVER_S)]
    words += ["--client-id", f"driver-{number}", "--max-records-per-transaction", "100", "--progress", "json", *spark]
    return stage.writer(*words, name=f"driver-{number}")


def works(stage: CellEnvironment, program: Program) -> set[int]:
    """Return the input partitions in which it has committed."""
    pids = program.all_pids()
    return {e.fields["partition"] for e in stage.journals.look() if is_commit(e) and e.pid in pids}


def drivers(mode: str, spark: tuple[str, ...], stage: CellEnvironment) -> None:
    """Of two drivers, the active one (or either, if they share) is killed and replaced, repeatedly."""

    def at_work() -> list[Program]:
        return [program for program in running if works(stage, program)]

    with stage.feeding(600):
        stage.orders(1000, "--transactional")
        running = [driver(stage, mode, number, *spark) for number in range(_DRIVERS)]
        wanted = _DRIVERS if mode == "--share" else 1
        for number in range(_DRIVERS, _DRIVERS + _times(stage)):
            stage.until(lambda: len(at_work()) >= wanted, f"{wanted} working drivers", _START_S)
            victim = stage.random.choice(at_work())
            held = _lately(stage, victim)
            victim.kill()
            killed = time.time()
            running.remove(victim)
            for program in running:
                if program.code() is not None:
                    raise StalledError(program.ending)  # ended by itself: nobody would take over
            stage.fire("kills")
            stage.recovered(killed, held)
            running.append(driver(stage, mode, number, *spark))
    stage.stop_writers()
    cluster_admin.delete_topics(stage.cluster.admin, [f"{stage.names.stem}.claims"], Deadline(_ASK_S))


for _name, _fault, _mode, _master, _more in (
    ("F08-stand-by", _TWO_STAND_BY, "--stand-by", (), {"path": "writer"}),
    ("F08-share", _TWO_SHARE, "--share", (), {"path": "writer", "marks": "prove"}),
    ("F08-share-spark", _TWO_SHARE, "--share", ("--master", "local[2]"), {"path": "spark", "needs": {Need.SPARK}}),
):
    _cells = partial(CELLS, readers=(CONNECTOR, DIRECT), needed=("kills",), bound_s=_FIRST_COMMIT_S, limit_s=240.0)
    _cells(_name, _fault, "driver", _mode, _master, **_more, partitions=8, judged=True)(drivers)


def _lately(stage: CellEnvironment, program: Program) -> set[int]:
    """Return the partitions of its last commits: once it is gone, nobody works on them."""
    mine = [e for e in stage.journals.entries if is_commit(e) and e.pid in program.all_pids()]
    return {e.fields["partition"] for e in mine if e.at > mine[-1].at - _DRIVER_S}
