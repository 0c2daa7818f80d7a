"""The ledger: lost consumers, servers and replies around a commit; members that join and leave; a restore."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self
from urllib.parse import urlsplit

from brew.errors import Refused
from proof.campaign.cell import CellTable
from proof.campaign.cells import stores
from proof.campaign.cells.stores import DIES, POSTGRES, SCHEMA, Consumer, Servers, ended, produce_orders
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable(path="downstream", readers=(), limit_s=900.0)
_DONE = b"COMMIT\x00"
"""The end of the server's `CommandComplete` for a COMMIT."""
_CHUNK, _CONNECT_S, _HOST = 65_536, 5.0, "127.0.0.1"
AROUND, BACK_S = "around the commit", 10.0
inside = partial(CELLS, moment="between INSERT and COMMIT", bound_s=BACK_S, needed={"database_kills": 2})
killed = partial(CELLS, moment=AROUND, needed={"kills": 0})
MOMENTS = ("after-claim", "before-commit", "commit-in-flight", "after-commit")
BATCH, ORDERS, _ROUNDS = 20, 240, 3
_POSITIONS = "SELECT json_object_agg(partition, next_offset) FROM kafka_offsets"
_IN_TRANSACTION = "SELECT pid FROM pg_stat_activity WHERE application_name = 'brew-ledger' AND state LIKE 'idle in%'"
_IDLE_S, _LOCK_S, _SESSION_S, _WAITS_S, _MEET_S = 3.0, 0.5, 6.0, 1.0, 2.0
LOCK_BOUND_S = _IDLE_S + 2 * _LOCK_S + 2.0
"""Time for a stopped member's session to end, which frees its lock, and for the next member to try again."""
REBALANCED_S = 2 * _SESSION_S + 3.0
"""Time for a dead or stopped member's session to expire, and for its partitions to be reassigned."""


class ReplyDroppingProxy:
    """Forwards bytes, but cuts both connections at some replies to a COMMIT; ``recovery_s``: until the next reply."""

    def __init__(self, url: str, probability: float, rng: random.Random) -> None:
        target = urlsplit(url)
        self._target = (target.hostname or _HOST, target.port or 5432)
        self._probability, self._rng = probability, rng
        self._listening = socket.create_server((_HOST, 0))
        self.url = target._replace(netloc=f"{target.username}@{_HOST}:{self._listening.getsockname()[1]}").geturl()
        self.lost, self.recovery_s = 0, list[float]()
        self._lost_at: float | None = None
        self._open, self._lock = list[socket.socket](), threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="loses-replies", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._cut(*self._open)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target, _CONNECT_S)
            except OSError:
                return
            server.settimeout(None)
            self._open += [client, server]
            for source, sink, replies in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass_on, args=(source, sink, replies), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(_CHUNK)) and not (replies and _DONE in data and self._loses()):
                sink.sendall(data)
        self._cut(source, sink)

    def _loses(self) -> bool:
        """Return whether to lose this reply; the server sends the reply to a COMMIT on its own, in one piece."""
        with self._lock:
            if self._rng.random() < self._probability:
                self.lost += 1
                self._lost_at = self._lost_at or time.time()
                return True
            if self._lost_at is not None:
                self.recovery_s.append(time.time() - self._lost_at)
                self._lost_at = None
            return False

    @staticmethod
    def _cut(*sockets: socket.socket) -> None:
        for connection in sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@dataclass(frozen=True, kw_only=True)
class Ledger(Consumer):
    """A pattern with a database of its own."""

    servers: Servers
    url: str

    def committed(self) -> int:
        """Return a number that grows with every commit; -1 while the database does not respond."""
        return sum(self.positions().values() or [-1])

    def positions(self) -> dict[int, int]:
        """Return the next offset of each partition; empty while the database does not respond."""
        try:
            by_partition = stores.query_row(self.url, _POSITIONS)[0]
        except Refused:
            return {}
        return {int(partition): offset for partition, offset in (by_partition or {}).items()}

    def check(self) -> None:
        """Drain the input, then compare: by the ledger's own check, and by the campaign's sums."""
        self.drain_and_check()
        stores.compare_ledger(self, self.url)


@contextlib.contextmanager
def ledger_on(stage: CellEnvironment, *options: str, bug: str = "", pattern: str = "ledger") -> Iterator[Ledger]:
    with Servers() as servers:
        url = servers.up(POSTGRES)
        words = (pattern, "--database", url, "--schema", SCHEMA, "--batch", str(BATCH), *options)
        with Ledger(stage, words, bug=bug, servers=servers, url=url) as ledger:
            yield ledger


@killed(
    "F29-consumer-control",
    "SIGKILL",
    "ledger (control)",
    MOMENTS[1:2],
    "position-afterwards",
    breaks="ledger-duplicate",
)
@killed("F29-consumer", "SIGKILL", "ledger", MOMENTS, "", marks="prove", bound_s=BACK_S)
def consumer_killed(moments: Sequence[str], bug: str, stage: CellEnvironment) -> None:
    """Consumers die around the commit with the row locked; in the control, between the commits of rows and position."""
    with ledger_on(stage, bug=bug) as ledger:
        stores.kill_repeatedly(ledger, moments, ledger.committed, per_kill=int(BATCH / DIES))
        ledger.check()


def _kill_backend(ledger: Ledger) -> None:
    """SIGKILL to the session's backend; the server ends all others and recovers."""
    os.kill(int(stores.query_row(ledger.url, _IN_TRANSACTION)[0]), signal.SIGKILL)


def _kill_server(ledger: Ledger) -> None:
    """SIGKILL to the postmaster and all its children; then it is restarted."""
    ledger.servers.run("kill", POSTGRES)
    ledger.servers.run("restart", POSTGRES)


@inside("F29-postmaster", "SIGKILL of the server", "ledger", _kill_server)
@inside("F29-backend", "SIGKILL of its backend", "ledger", _kill_backend)
def database_killed(kill: Callable[[Ledger], None], stage: CellEnvironment) -> None:
    """The database, or a part of it, dies between INSERT and COMMIT, and recovers."""
    with ledger_on(stage) as ledger:
        for _ in range(_ROUNDS):
            produce_orders(stage, ORDERS)
            member = ledger.start(*stores.dying(stage, "before-commit", "stop"), "--json")
            if not stores.stopped(stage, member):
                continue
            before = ledger.committed()
            kill(ledger)
            since = time.time()
            stage.fire("database_kills")
            member.signal(signal.SIGCONT)
            stores.moved(stage, ledger.committed, since, before)
            ended(stage, member)
        ledger.check()


@CELLS(*("F29-reply", "the COMMIT's reply lost", "ledger"), moment=AROUND, bound_s=BACK_S, needed={"lost_replies": 3})
def reply_lost(stage: CellEnvironment) -> None:
    """The COMMIT takes effect and its reply is lost: the ledger reads its position back."""
    with ledger_on(stage) as ledger:
        produce_orders(stage, 2 * ORDERS)
        with ReplyDroppingProxy(ledger.url, DIES / 2, stage.random) as proxy:
            ledger.drain("--database", proxy.url)
        stage.fire("lost_replies", proxy.lost)
        stage.recovery_s += proxy.recovery_s
        ledger.check()


@CELLS(
    *("F30-row-locked", "SIGSTOP until another took over, then SIGCONT or SIGKILL", "ledger"),
    moment="rows locked",
    bound_s=LOCK_BOUND_S,
    needed={"pauses": 2, "kills": 1, "overtaken": 1},
)
def row_locked(stage: CellEnvironment) -> None:
    """A member hangs with its rows locked, and another takes over: after a time-out, then after a kill as it waits."""
    times = ("--idle-timeout-s", f"{_IDLE_S:g}", "--lock-timeout-s", f"{_LOCK_S:g}")
    with ledger_on(stage, *times) as ledger:
        for killed in (False, True):
            produce_orders(stage, ORDERS)
            sleeper = ledger.start(*stores.dying(stage, "before-commit", "stop", 1.0), "--json")
            if not stores.stopped(stage, sleeper):
                continue
            since = time.time()
            stage.fire("pauses")
            rival = ledger.start("--json", name="rival")
            if killed:
                stage.pause(_WAITS_S)
                sleeper.kill()
                since = time.time()
                stage.fire("kills")
            ended(stage, rival)
            assert rival.ended_at is not None
            stage.recovery_s.append(rival.ended_at - since)
            if not killed:
                sleeper.signal(signal.SIGCONT)
                if json.loads(ended(stage, sleeper).printed())["entries"] == 0:
                    stage.fire("overtaken")
        ledger.check()


@CELLS(
    *("F30-row-locked-control", "SIGSTOP, another goes on", "ledger (control)"),
    moment="behind the commit",
    needed=("pauses",),
    breaks="ledger-duplicate",
)
def row_unguarded(stage: CellEnvironment) -> None:
    """The control: positions come from Kafka's offset and are written without checking for another writer."""
    with ledger_on(stage, bug="position-of-kafka") as ledger:
        produce_orders(stage, ORDERS)
        sleeper = ledger.start(*stores.dying(stage, "after-commit", "stop", 1.0))
        if stores.stopped(stage, sleeper):
            stage.fire("pauses")
        ended(stage, ledger.start(name="rival"))
        sleeper.signal(signal.SIGCONT)
        ended(stage, sleeper)
        ledger.check()


@CELLS(
    *("F30-rebalance", "members join, leave, hang and die", "ledger"),
    bound_s=REBALANCED_S,
    needed={"joins": 3, "kills": 1, "pauses": 1},
)
def rebalance(stage: CellEnvironment) -> None:
    """Members of a group join, leave, hang and die while orders arrive; partitions move between them."""
    with ledger_on(stage) as ledger:
        with stage.feeding():
            stage.writer("--follow")
            _join_and_leave(stage, ledger)
            stage.stop_writers()
        stage.drain()
        ledger.check()


def _join_and_leave(stage: CellEnvironment, ledger: Ledger) -> None:
    follow = ("--follow", "--session-timeout-s", f"{_SESSION_S:g}", "--max-poll-interval-s", "30")
    start = partial(ledger.start, *follow, join=True)
    first = start()
    _all_move(stage, ledger)
    second, third = start(), start()
    _all_move(stage, ledger)
    stage.fire("joins", 3)
    first.terminate()
    ended(stage, first)
    _all_move(stage, ledger)
    second.kill()
    stage.fire("kills")
    _all_move(stage, ledger)
    third.signal(signal.SIGSTOP)
    stage.fire("pauses")
    fourth = start()
    _all_move(stage, ledger)
    third.signal(signal.SIGCONT)
    _all_move(stage, ledger)
    for member in (third, fourth):
        member.terminate()
        ended(stage, member)


def _all_move(stage: CellEnvironment, ledger: Ledger) -> None:
    """Wait until the ledger advances in every partition, after the members had time to join; record the seconds."""
    stage.pause(_MEET_S)
    since, before = time.time(), ledger.positions()

    def all_moved() -> bool:
        return all(ledger.positions().get(p, 0) > offset for p, offset in before.items())

    stage.until(all_moved, "every partition going on", 60.0)
    stage.recovery_s.append(time.time() - since)


@contextlib.contextmanager
def _set_back(stage: CellEnvironment, bug: str) -> Iterator[Ledger]:
    """Yield a ledger whose database was restored to an earlier copy, so that Kafka is ahead of it."""
    with ledger_on(stage, bug=bug) as ledger:
        ledger.work_off(ORDERS)
        copy = ledger.servers.backup(POSTGRES)
        ledger.work_off(ORDERS)
        ledger.servers.restore(POSTGRES, copy)
        stage.fire("restores")
        yield ledger


@CELLS(*("F31-restore", "database set back", "ledger"), moment="Kafka ahead", needed=("restores", "alarms"))
def restored(stage: CellEnvironment) -> None:
    """The database is restored to an earlier state: an alarm, and everything missing in it is read again."""
    with _set_back(stage, "") as ledger:
        if "ledger-rollback" not in ledger.checked()["findings"]:
            raise StalledError("the check does not report that Kafka is ahead of the database")
        drained = json.loads(ledger.drain("--json").printed())
        stage.fire("alarms", sum(alarm.startswith("ledger-rollback") for alarm in drained["alarms"]))
        ledger.check()


@CELLS(
    *("F31-restore-control", "database set back", "ledger (control)"),
    moment="Kafka ahead",
    needed=("restores",),
    breaks="ledger-missing",
)
def larger_of_both(stage: CellEnvironment) -> None:
    """The control: the pattern that takes the larger of both offsets skips what the database lost."""
    with _set_back(stage, "larger-of-both") as ledger:
        produce_orders(stage, ORDERS)  # so that the position jumps over what is missing
        ledger.check()
