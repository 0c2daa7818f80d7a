"""Downstream patterns as tests run them: inside the test's process, in a thread, or as programs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from brew.connection import Connection
from brew.fault_injection import StoreCrash
from downstream.consume.handler import Handler, LoopSettings
from downstream.consume.loop import Loop, LoopResult
from downstream.ledger.check import CheckResult, check
from downstream.ledger.command import LedgerHandler
from downstream.postgres import DatabaseSettings
from downstream.receive import check as receive_check
from downstream.receive.postgres import PostgresReceiver
from downstream.receive.receiver import Receiver, ReceiverResult, ReceiverSettings, identifier
from downstream.receive.redis import Effect, RedisReceiver, RedisScriptReceiver, RedisSettings
from harness.programs import ROOT

PROGRAM_S = 60.0


@dataclass
class Running:
    """A loop in a thread; `done` raises its error."""

    loop: Loop
    stop: threading.Event
    thread: threading.Thread = field(init=False)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self.error = error

    def done(self, seconds: float = PROGRAM_S) -> LoopResult:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the loop did not end"
        if self.error is not None:
            raise self.error
        return self.loop.result


def settings(bootstrap: str, group: str, topic: str, **more: Any) -> LoopSettings:
    return LoopSettings(Connection(bootstrap), group, topic, **{"partitions": (0, 1, 2, 3), **more})


def drain(loop: LoopSettings, handler: Handler) -> LoopResult:
    """Run the loop in this thread until the log's end."""
    return Loop(loop, handler, threading.Event()).run()


@contextlib.contextmanager
def following(loop: LoopSettings, handler: Handler) -> Iterator[Running]:
    stop = threading.Event()
    running = Running(Loop(loop, handler, stop), stop)
    try:
        yield running
    finally:
        stop.set()
        running.thread.join(PROGRAM_S)


@dataclass(frozen=True)
class LedgerStage:
    """The ledger of one test: a schema, a group, a topic."""

    bootstrap: str
    url: str
    topic: str
    group: str
    schema: str

    @property
    def database(self) -> DatabaseSettings:
        return DatabaseSettings(self.url, self.schema)

    def loop(self, **more: Any) -> LoopSettings:
        return settings(self.bootstrap, self.group, self.topic, **more)

    def handler(self, notes: list[str] | None = None, database: DatabaseSettings | None = None) -> LedgerHandler:
        messages = notes if notes is not None else []
        return LedgerHandler(database or self.database, self.group, self.topic, messages.append, StoreCrash())

    def book(self, handler: LedgerHandler | None = None, **more: Any) -> LedgerHandler:
        """Drain with one member in this process; return the handler, to inspect what it booked."""
        handler = handler or self.handler()
        drain(self.loop(**more), handler)
        return handler

    def check(self) -> CheckResult:
        return check(self.loop(), self.database)

    def proven(self, records: int) -> CheckResult:
        result = self.check()
        assert (dict(result.findings), result.records, result.rows, result.waiting) == ({}, records, records, 0), (
            result.text()
        )
        assert result.booked == result.total
        return result

    def command(self, *options: str) -> list[str]:
        names = ["--topic", self.topic, "--group", self.group, "--schema", self.schema]
        stores = ["--bootstrap", self.bootstrap, "--database", self.url]
        return [sys.executable, "-m", "downstream", "ledger", *stores, *names, *options]


def run(command: Sequence[str], seconds: float = PROGRAM_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds, env=clean_environment()
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def clean_environment() -> dict[str, str]:
    named = {"BOOTSTRAP", "DATABASE_URL", "REDIS_URL", "FOLLOW"}
    return {name: value for name, value in os.environ.items() if name not in named}


@dataclass(frozen=True)
class ReceiveStage:
    """The receivers of one test: a topic, a group, and the stores for their claims."""

    bootstrap: str
    topic: str
    group: str
    url: str = ""
    schema: str = ""
    redis: str = ""

    @property
    def database(self) -> DatabaseSettings:
        return DatabaseSettings(self.url, self.schema)

    def settings(self, *, message_id: str = "source", **more: Any) -> ReceiverSettings:
        return ReceiverSettings(self.group, self.topic, identifier(message_id), **more)

    def loop(self, **more: Any) -> LoopSettings:
        return settings(self.bootstrap, self.group, self.topic, **more)

    def receive(self, receiver: Receiver, **more: Any) -> ReceiverResult:
        drain(self.loop(**more), receiver)
        return receiver.received

    def in_postgres(self, keep_s: float | None = None, *, outbox: bool = False, **more: Any) -> PostgresReceiver:
        receiver = PostgresReceiver(self.settings(**more), self.database, keep_s, outbox=outbox)
        receiver._clean_up._every_s = 0.05
        return receiver

    def in_redis(self, effect: Effect | None = None, *, keep_s: float = 60.0, **more: Any) -> RedisReceiver:
        return RedisReceiver(self.settings(**more), RedisSettings(self.redis, keep_s, claim_s=0.5), effect)

    def in_script(self, *, keep_s: float = 60.0, accept: bool = False, **more: Any) -> RedisScriptReceiver:
        return RedisScriptReceiver(self.settings(**more), RedisSettings(self.redis, keep_s), accept_weaker=accept)

    def check(self, *, outbox: bool = False, message_id: str = "source") -> receive_check.CheckResult:
        effects: receive_check.Effects
        if self.redis:
            effects = receive_check.RedisEffects(self.group, RedisSettings(self.redis))
        else:
            effects = receive_check.PostgresEffects(self.group, self.database, outbox=outbox)
        return receive_check.check(self.loop(), identifier(message_id), effects)

    def proven(self, messages: int, **how: Any) -> None:
        result = self.check(**how)
        counts = (dict(result.findings), result.messages, result.effects, result.waiting)
        assert counts == ({}, messages, messages, 0), result.text()

    def command(self, store: str, *options: str) -> list[str]:
        source = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--group", self.group, "--store", store]
        stores = ["--redis", self.redis] if self.redis else ["--database", self.url, "--schema", self.schema]
        return [sys.executable, "-m", "downstream", "receive", *source, *stores, *options]
