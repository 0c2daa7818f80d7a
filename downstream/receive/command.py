"""`downstream receive`, and a demo server that receives the outbox's requests."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from brew.cli import group_option, option
from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.kafka import topics
from brew.kafka.clients import admin, reach
from brew.names import ExitCode, quantity
from brew.observability.recorder import Recorder
from downstream.consume.handler import LoopSettings
from downstream.consume.loop import LoopResult
from downstream.consume.options import (
    crash_of,
    crash_options,
    database_options,
    database_settings,
    loop_options,
    loop_settings,
)
from downstream.observed import consume, stop_event, to_stderr
from downstream.receive.check import Effects, PostgresEffects, RedisEffects, check
from downstream.receive.postgres import CallSettings, Deliverer, PostgresReceiver, RetentionCheck
from downstream.receive.receiver import BAD_QUANTITY, SOURCE, Receiver, ReceiverSettings, identifier
from downstream.receive.redis import RedisReceiver, RedisScriptReceiver, RedisSettings

HOST = "127.0.0.1"
_OK, _UNAVAILABLE = 200, 503


class DemoServer(ThreadingHTTPServer):
    """POST has one effect per key; every ``fail_every``-th gets 503, half of these after the effect. GET: counts."""

    daemon_threads = True

    def __init__(self, port: int = 0, fail_every: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self._lock = threading.Lock()
        self._fail_every = fail_every
        self.requests = self.failures = 0
        self.effects: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def take(self, key: str) -> int:
        with self._lock:
            self.requests += 1
            failing = bool(self._fail_every) and self.requests % self._fail_every == 0
            self.failures += failing
            if failing and self.failures % 2:
                return _UNAVAILABLE
            if key not in self.effects:
                self.effects[key] += 1
            return _UNAVAILABLE if failing else _OK

    def counts(self) -> dict[str, int]:
        with self._lock:
            effects = sum(self.effects.values())
            return {"requests": self.requests, "effects": effects, "duplicates": effects - len(self.effects)}

    def serving(self) -> threading.Thread:
        """Serve in a thread until `shutdown`."""
        thread = threading.Thread(target=self.serve_forever, args=[0.05], name="sink", daemon=True)
        thread.start()
        return thread


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Send head and body in one packet; otherwise the second waits 40 ms for the first one's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: DemoServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(self.server.take(self.headers.get("Idempotency-Key") or ""), {})

    def do_GET(self) -> None:
        self._answer(_OK, self.server.counts())

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing."""


GROUP = "brew-receive"
_ASK_S = 15.0
_DAY_S = 86_400
_STORES = ("postgres", "redis", "redis-script", "outbox")


@click.command("receive")
@option("--store", type=click.Choice(_STORES), default="postgres", help="Store of the claims; see above.")
@loop_options
@group_option(GROUP, "Consumer group; owns the positions and claims.")
@option("--message-id", default=SOURCE, help="Id of a message: its `source` headers, or `field:NAME` of its value.")
@option(
    "--keep-days", type=click.FloatRange(0, 36_500), default=21.0, help="Days for which claims are kept; 0: forever."
)
@click.option("--again", is_flag=True, help="Read from the log's start; messages already processed have no effect.")
@database_options
@option("--schema", default="brew_receive", help="PostgreSQL schema of the tables.")
@click.option("--redis", "redis_url", envvar="REDIS_URL", metavar="URL", help="Redis server: redis://host:port/0.")
@option(
    "--claim-s",
    type=click.FloatRange(0.001, 604_800),
    default=30.0,
    help="redis: seconds until a claim expires; longer than any effect takes.",
)
@click.option("--accept-weaker", is_flag=True, help="Run even if the store can lose acknowledged writes.")
@click.option("--effect-url", metavar="URL", help="outbox: URL to post requests to.")
@click.option(
    "--check", "only_check", is_flag=True, help="Compare effects with the topic; exit 1 unless each message has one."
)
@crash_options
def receive_command(*, only_check: bool, as_json: bool, **given: Any) -> int:
    """
    Give customers points for their orders, one effect per message, however often it is delivered.

    \b
    postgres      Exactly once, for effects in that database: claim and effect are one transaction.
    outbox        A request is enqueued exactly once and sent at least once; it takes effect once if the receiver
                  honours `Idempotency-Key`.
    redis-script  Exactly once, for effects in that Redis: claim and effect are one script. Refused where Redis can
                  evict or lose claims. A failover to a lagging replica loses effects and their claims; use --again.
    redis         At least once, for an effect anywhere: SET NX, effect, done. A crash after the effect, an expired
                  claim, eviction and failover each lead to duplicates.

    Positions are stored in Kafka after the effect. Claims must outlive the topic's records, or a message could be
    redelivered after its claim was deleted: --keep-days must exceed retention.ms plus segment.ms, because Kafka
    deletes a segment as a whole, once its last record has expired. Older claims are deleted in the background.
    Also refused: PostgreSQL with fsync, full_page_writes or synchronous_commit off.

    Examples:
      python -m downstream receive --database postgresql://brew@localhost:5432/brew
      python -m downstream receive --store redis-script --redis redis://localhost:6379/0 --follow
      python -m downstream receive --store outbox --effect-url http://localhost:8080/
      python -m downstream receive --message-id field:order_id --group by-order
      python -m downstream receive --check --json
    """  # noqa: D301 - click's own mark
    store, settings = given["store"], loop_settings(given, given["group"])
    identify = identifier(given["message_id"])
    effects = _effects(store, given)  # also refuses a missing address, before the brokers are asked
    if only_check:
        checked = check(settings, identify, effects)
        click.echo(json.dumps(checked.document(), indent=2) if as_json else checked.text())
        return ExitCode.VIOLATION if checked.findings else ExitCode.DONE
    if store == "outbox" and not given["effect_url"]:
        raise UsageError("--effect-url is missing: the outbox needs a URL to post its requests to")
    keep_s = _reach_and_keep_s(settings, given)
    receiver_settings = ReceiverSettings(
        settings.group, settings.topic, identify, given["again"], crash_of(given), to_stderr
    )
    receiver = _receiver(store, receiver_settings, keep_s, given)
    if keep_s is not None and not given["accept_weaker"]:
        receiver.background.append(RetentionCheck(partial(_keep_s, settings, given)))
    deliverer = None
    if store == "outbox":
        calls = CallSettings(given["effect_url"])
        deliverer = Deliverer(settings.group, database_settings(given), calls, receiver_settings.crash)
    result = _run(settings, receiver, deliverer, given)
    _print_result(receiver, deliverer, result, as_json=as_json)
    return ExitCode.DONE


def _run(settings: LoopSettings, receiver: Receiver, deliverer: Deliverer | None, given: dict[str, Any]) -> LoopResult:
    stop = stop_event(follow=settings.follow)

    def prepare(recorder: Recorder) -> None:
        receiver.recorder = recorder
        recorder.skipped(0)
        recorder.rejected(BAD_QUANTITY, 0)

    if deliverer is not None:
        receiver.background.append(deliverer)
    try:
        result = consume("downstream receive", settings, receiver, given, stop, prepare)
        if deliverer is not None and not stop.is_set():
            deliverer.drain(Deadline(settings.patience_s), stop)
    finally:
        if deliverer is not None:
            deliverer.stop(Deadline(_ASK_S))
    return result


def _print_result(receiver: Receiver, deliverer: Deliverer | None, result: LoopResult, *, as_json: bool) -> None:
    received = receiver.received
    if as_json:
        summary = dataclasses.asdict(result) | dataclasses.asdict(received)
        if deliverer is not None:
            summary |= {"sent": deliverer.sent, "refused": deliverer.refused}
        click.echo(json.dumps(summary, indent=2))
        return
    rejected = f", {received.rejected} rejected ({BAD_QUANTITY})" if received.rejected else ""
    done = f"{quantity(received.messages, 'message')}, {quantity(received.effects, 'effect')}"
    click.echo(f"{done}, {received.repeated} known already{rejected}")
    if deliverer is not None:
        click.echo(f"{quantity(deliverer.sent, 'request')} sent, {deliverer.refused} refused by the receiver")


def _receiver(store: str, receiver_settings: ReceiverSettings, keep_s: float | None, given: dict[str, Any]) -> Receiver:
    if store in {"postgres", "outbox"}:
        return PostgresReceiver(receiver_settings, database_settings(given), keep_s, outbox=store == "outbox")
    redis = _redis(given, keep_s)
    if store == "redis":
        return RedisReceiver(receiver_settings, redis)
    return RedisScriptReceiver(receiver_settings, redis, accept_weaker=given["accept_weaker"])


def _effects(store: str, given: dict[str, Any]) -> Effects:
    if store in {"postgres", "outbox"}:
        return PostgresEffects(given["group"], database_settings(given), outbox=store == "outbox")
    return RedisEffects(given["group"], _redis(given, 1.0))


def _redis(given: dict[str, Any], keep_s: float | None) -> RedisSettings:
    if not given["redis_url"]:
        raise UsageError(
            "--redis (REDIS_URL) is missing; `python -m sandbox stores up redis` starts one and prints its URL"
        )
    if keep_s is None:
        raise UsageError("--keep-days is 0, forever, but Redis keeps claims in memory; give a number of days")
    return RedisSettings(given["redis_url"], keep_s, given["claim_s"])


def _reach_and_keep_s(settings: LoopSettings, given: dict[str, Any]) -> float | None:
    deadline = Deadline(_ASK_S)
    reach(settings.connection, deadline)
    topics.describe_one(admin(settings.connection), settings.topic, deadline)
    return _keep_s(settings, given)


def _keep_s(settings: LoopSettings, given: dict[str, Any]) -> float | None:
    client, deadline, topic = admin(settings.connection), Deadline(_ASK_S), settings.topic
    if given["accept_weaker"]:
        return longer_than_records(given["keep_days"], 0.0, 0.0, topic)
    deletes = "delete" in topics.cleanup_policy(client, topic, deadline)  # otherwise records are compacted and kept
    retention_s = topics.retention_s(client, topic, deadline) if deletes else None
    return longer_than_records(given["keep_days"], retention_s, topics.segment_s(client, topic, deadline), topic)


def longer_than_records(days: float, retention_s: float | None, segment_s: float, topic: str) -> float | None:
    """
    Return ``days`` (0: forever) in seconds (None: forever); raises `Refused` if the topic's records can outlive that.
    Kafka deletes whole segments: a segment's first record stays until its last, up to ``segment_s`` younger, expires
    after ``retention_s`` (None: never).
    """
    if days == 0:
        return None
    kept, remedy = "forever", "give 0 to keep claims forever (not in Redis)"
    if retention_s is not None:
        if days * _DAY_S > retention_s + segment_s:
            return days * _DAY_S
        longest, retention, segment = (s / _DAY_S for s in (retention_s + segment_s, retention_s, segment_s))
        kept = f"for up to {longest:g} days (retention.ms {retention:g} days, segment.ms {segment:g} days)"
        remedy = f"raise --keep-days above {longest:g}, lower segment.ms, or {remedy}"
    raise Refused(
        f"claims would be kept for {days:g} days, and {topic!r} keeps its records {kept}: a message could be "
        f"redelivered after its claim was deleted; {remedy}"
    )


@click.command("sink")
@option("--port", type=click.IntRange(0, 65_535), default=0, help="Port to listen on; 0: a free one.")
@click.option("--fail-every", type=click.IntRange(0), default=0, help="Answer every n-th request with 503; 0: none.")
def sink_command(port: int, fail_every: int) -> int:
    """
    Answer POSTs until SIGTERM, with one effect per `Idempotency-Key`; GET returns the counts. For demonstrations.

    Example:
      python -m downstream sink --port 8080 --fail-every 7
    """
    with DemoServer(port, fail_every) as server:
        stop = stop_event(follow=True)
        server.serving()
        click.echo(f"listening at {server.url}")
        stop.wait()
        server.shutdown()
        click.echo(json.dumps(server.counts()))
    return ExitCode.DONE
