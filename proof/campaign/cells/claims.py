"""Cells of claims and of those who hold them."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from brew.deadline import Deadline
from brew.kafka import cluster_admin
from brew.names import ExitCode
from proof.campaign.cell import Cell, Need
from proof.campaign.journals import is_commit
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError
from proof.claims.claimant import ClaimsFollower
from proof.claims.history import History, MemberView

MEMBERS, PARTITIONS, INTERVAL_S = 8, 64, 1.0
_SHOWN = 5
_CLAIMANTS_ASK_S = 20.0
_SPREAD_S = 40.0


class Claimants:
    """``options`` go to each of them; names are never used twice."""

    def __init__(self, stage: CellEnvironment, *options: str) -> None:
        self.stage, self._options = stage, options
        self.topic = f"{stage.names.stem}.claims"
        self.watching = ClaimsFollower(stage.cluster.connection, self.topic)
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
            if (code := program.wait(Deadline(_CLAIMANTS_ASK_S))) != 0:
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
def claimants(stage: CellEnvironment, *options: str) -> Iterator[Claimants]:
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
        cluster_admin.delete_topics(stage.cluster.admin, [found.topic], Deadline(_CLAIMANTS_ASK_S))


def _views(program: Program) -> Iterator[MemberView]:
    """What it printed; a line that a kill cut off is left out."""
    for line in program.printed().splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("["):
            client, position, held = json.loads(line)
            yield MemberView(client, position, {int(partition): token for partition, token in held.items()})


_ROUNDS_PER_KILL = 10
_SHORT, _LONG = 2, 8
_ASK_S = 20.0
_SNAPSHOT_RECORDS = 200
_DRIVERS = 2
_DRIVER_S = 1.0
_START_S = 60.0
# Two intervals, and on top of them a look at the log, the claim, and (drivers) the first transaction.
_TAKEN_S, _FIRST_COMMIT_S = 2 * INTERVAL_S + 2.0, 2 * _DRIVER_S + 3.0
_NEW_LEADER_S = 15.0  # as rows F14 and F17 have it
_SKEWS = (("--skew-s", "60"), ("--skew-s", "-60"), ("--rate", "0.6"), ("--rate", "1.6"))
_KEPT = 100


def _times(stage: CellEnvironment) -> int:
    """How often a cell breaks what it breaks: twice in a short round, up to eight times in a long one."""
    return max(min(stage.kills, _SHORT), min(_LONG, stage.kills // _LONG))


def races(stage: CellEnvironment) -> None:
    """Eight claimants want 64 partitions at the same moment, round after round; the races' own judge reads the log."""
    rounds = _ROUNDS_PER_KILL * stage.kills
    words = ("claims-races", "--bootstrap", stage.cluster.bootstrap, "--rounds", str(rounds), "--seed", str(stage.seed))
    program = stage.programs.python("races", "proof", *words, "--json")
    code = program.wait(stage.deadline)
    if code not in {ExitCode.DONE, ExitCode.VIOLATION}:
        stage.doubts.append(f"the races ended with {code}: {program.last_words()}")
        return
    told = json.loads(program.printed())
    stage.findings += [{"name": "two-owners", "evidence": text} for text in told["findings"]]
    stage.counts |= {"messages": told["messages"], "grants": sum(told["wins"].values())}
    stage.fire("rounds", told["rounds"])
    stage.fire("winners", len(told["wins"]))
    stage.notes.append(f"all owned after {told['owned_after_s']['p50']} s (p50), {told['owned_after_s']['max']} s")


def sleepers(stage: CellEnvironment, *options: str) -> None:
    """An owner sleeps past two heartbeats; others take what it had, and its writes count for nothing when it wakes."""
    with claimants(stage, *options) as members:
        for _ in range(_times(stage)):
            victim = members.any_owner()
            members.await_rest(victim)  # caught in a turn it could wake up to others' claims, and write nothing late
            had, asleep = members.has(victim), time.time()
            members.programs[victim].signal(signal.SIGSTOP)
            members.taken_over(victim, asleep, had)
            stage.fire("pauses")
            members.programs[victim].signal(signal.SIGCONT)
            members.settle()


def wrong_clocks(stage: CellEnvironment) -> None:
    """Four members have clocks that are a minute off or run at another speed; owners are killed among them."""
    with claimants(stage) as members:
        for skew in _SKEWS:
            members.start(*skew)
            stage.fire("wrong_clocks")
        members.settle()
        for _ in range(_times(stage)):
            members.die(members.any_owner())
            members.settle()


def broker_restarts(stage: CellEnvironment) -> None:
    """The broker that leads the log dies while a part of it is claimed; then it comes back."""
    with claimants(stage) as members:
        for _ in range(_times(stage)):
            at, had = members.kill(victim := members.any_owner())
            leader = cluster_admin.leaders(stage.cluster.admin, members.topic, Deadline(_ASK_S))[0]
            stage.sandbox.kill(leader)
            stage.fire("broker_kills")
            members.taken_over(victim, at, had)
            stage.sandbox.restart(leader)
            members.start()
            members.settle()


def short_memory(stage: CellEnvironment) -> None:
    """The log's past goes, as retention takes it, snapshots and claims included; members die, and newcomers join."""
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


def believers(stage: CellEnvironment) -> None:
    """The control: sleepers that wake up and don't hear what they have lost."""
    sleepers(stage, "--believing")


def driver(stage: CellEnvironment, way: str, number: int, *spark: str) -> Program:
    """A pipeline that stands by, or that shares; without Spark unless ``spark`` names a master."""
    words = ["--follow", way, "--claims", f"{stage.names.stem}.claims", "--claim-interval", str(_DRIVER_S)]
    words += ["--client-id", f"driver-{number}", "--max-records-per-transaction", "100", "--progress", "json", *spark]
    return stage.writer(*words, name=f"driver-{number}")


def works(stage: CellEnvironment, program: Program) -> set[int]:
    """The input partitions in which it has committed."""
    stage.journals.look()
    family = program.family()
    return {e.fields["partition"] for e in stage.journals.entries if is_commit(e) and e.pid in family}


def drivers(way: str, spark: tuple[str, ...], stage: CellEnvironment) -> None:
    """Of two drivers the one that works (or either, where they share) is killed, and another comes; time after time."""
    with stage.feeding(600):
        stage.orders(1000, "--transactional")
        running = [driver(stage, way, number, *spark) for number in range(_DRIVERS)]
        wanted = _DRIVERS if way == "--share" else 1
        at_work = functools.partial(_at_work, stage, running)
        for number in range(_DRIVERS, _DRIVERS + _times(stage)):
            stage.until(lambda: len(at_work()) >= wanted, f"{wanted} at work", _START_S)
            victim = stage.random.choice(at_work())
            held = _lately(stage, victim)
            victim.kill()
            killed = time.time()
            running.remove(victim)
            _still_there(running)
            stage.fire("kills")
            stage.recovered(killed, held)
            running.append(driver(stage, way, number, *spark))
    stage.stop_writers()
    cluster_admin.delete_topics(stage.cluster.admin, [f"{stage.names.stem}.claims"], Deadline(_ASK_S))


def _at_work(stage: CellEnvironment, running: list[Program]) -> list[Program]:
    return [one for one in running if works(stage, one)]


def _still_there(running: list[Program]) -> None:
    """A driver that ended by itself is a finding, and nobody would take over."""
    for one in running:
        if one.code() is not None:
            raise StalledError(f"{one.name} ended with {one.code()}: {one.last_words()}")


def _lately(stage: CellEnvironment, program: Program) -> set[int]:
    """Where its last commits were: what nobody works on once it is gone."""
    mine = [e for e in stage.journals.entries if is_commit(e) and e.pid in program.family()]
    return {e.fields["partition"] for e in mine if e.at > mine[-1].at - _DRIVER_S}


def _claims_cell(
    name: str,
    fault: str,
    play: Callable[[CellEnvironment], None],
    *marks: str,
    needed: Mapping[str, int],
    target: str = "claimant",
    needs: frozenset[Need] = frozenset(),
    expected: str = "proven",
    bound_s: float = _TAKEN_S,
) -> Cell:
    return Cell(
        name=name,
        row="F34",
        fault=fault,
        target=target,
        moment="under load",
        play=play,
        path="claims",
        needs=needs,
        needed=needed,
        bound_s=bound_s,
        limit_s=900.0,
        expected=expected,
        marks=frozenset(marks),
        judged=False,
    )


def _drivers_cell(way: str, fault: str, *marks: str, spark: tuple[str, ...] = ()) -> Cell:
    return Cell(
        name=f"F08{way[1:]}{'-spark' if spark else ''}",
        row="F08",
        fault=fault,
        target="driver",
        moment="under load",
        play=functools.partial(drivers, way, spark),
        path="spark" if spark else "writer",
        needs=frozenset({Need.SPARK}) if spark else frozenset(),
        needed={"kills": 1},
        bound_s=_FIRST_COMMIT_S,
        limit_s=240.0,
        marks=frozenset(marks),
        partitions=8,
    )


CELLS = (
    _drivers_cell("--stand-by", "the one of two drivers that works is killed, the other stands by"),
    _drivers_cell("--share", "one of two drivers that share by claims is killed", "prove"),
    _drivers_cell(
        "--share",
        "one of two drivers that share by claims is killed",
        spark=("--master", "local[2]"),
    ),
    _claims_cell("F34-races", "8 claimants race for 64 partitions", races, needed={"rounds": 1, "winners": 2}),
    _claims_cell(
        "F34-sleepers",
        "SIGSTOP past two heartbeats, then SIGCONT",
        sleepers,
        "prove",
        needed={"pauses": 1, "takeovers": 1, "late": 1, "views": 8},
    ),
    _claims_cell(
        "F34-wrong-clocks",
        "clocks 60 s off, or too fast, or too slow; SIGKILL",
        wrong_clocks,
        needed={"wrong_clocks": len(_SKEWS), "kills": 1, "takeovers": 1, "views": 8},
    ),
    _claims_cell(
        "F34-broker-restarts",
        "the log's broker and a claimant killed",
        broker_restarts,
        target="claimant and broker",
        needs=frozenset({Need.SANDBOX, Need.THREE}),
        needed={"broker_kills": 1, "kills": 1, "takeovers": 1, "views": 8},
        bound_s=_TAKEN_S + _NEW_LEADER_S,
    ),
    _claims_cell(
        "F34-short-memory",
        "the log's past deleted, as by retention; SIGKILL",
        short_memory,
        target="claims topic",
        needed={"pasts_deleted": 1, "snapshots_gone": 1, "kills": 1, "takeovers": 1, "views": 8},
    ),
    _claims_cell(
        "F34-believers-control",
        "SIGSTOP past two heartbeats, then SIGCONT",
        believers,
        target="a claimant that keeps what it lost (control)",
        needed={"pauses": 1},
        expected="violated",
    ),
)
