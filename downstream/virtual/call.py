"""`downstream call`: one HTTP request per record, and dead letters for those that fail permanently."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from functools import partial
from typing import Any

import click
import urllib3

from brew.cli import group_option, option
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, UsageError
from brew.kafka import topics
from brew.kafka.clients import KafkaError, KafkaException, admin, mapped, producer, reach
from brew.kafka.cluster_admin import roomier_limit
from brew.kafka.log_reader import LogRecord
from brew.kafka.transaction import MESSAGE_MAX_BYTES
from brew.names import ExitCode, checked_topic, quantity
from brew.offsets import SourcePosition
from brew.records import ERROR_EXCEPTION, ERROR_MESSAGE, ERROR_OFFSET, ERROR_PARTITION, ERROR_REASON, ERROR_TOPIC
from downstream.address import RequestOutcome, authorization, checked_http, idempotency_key, masked_url
from downstream.consume.handler import DeliverySemantics, RetryLater
from downstream.consume.options import loop_options, loop_settings
from downstream.http_pool import http_pool
from downstream.observed import consume, stop_event, to_stderr
from downstream.virtual.partitions import NonRetriableError, VirtualPartitions, VirtualSettings
from downstream.virtual.scheduling import OnFailure, Retries

REASON = "call-failed"
IDEMPOTENCY_KEY = "Idempotency-Key"
_WRITE_S = 30.0


class CallFailedError(BrewError):
    """The receiver answered with an error, or not within the time-out."""


def message_id(topic: str, record: LogRecord) -> SourcePosition:
    """Return a record's id across redeliveries: its source position, or its own position if it has none."""
    return SourcePosition.of(record.headers()) or SourcePosition(topic, record.partition(), record.offset())


class Caller:
    """
    Sends each record's value with POST; a 2xx response counts as the effect. Thread-safe. At least once: a crash
    between the answer and the stored offset sends the record again with the same `Idempotency-Key`, so that the
    receiver can recognise it. Permanent 4xx errors are not retried.
    """

    def __init__(
        self, url: str, timeout_s: float, connection: Connection, topic: str, dead_letter: str, calls: int
    ) -> None:
        self._url, self._topic, self._dead_letter = url, topic, dead_letter
        self._login = authorization(url)
        # The workers retry, so that other keys continue meanwhile.
        self._http, self._timeout_s = http_pool(timeout_s, calls), timeout_s
        self._made = partial(producer, connection, None, timeout_s=_WRITE_S, message_max_bytes=MESSAGE_MAX_BYTES)
        self._writer = self._made()
        self._writing = threading.Lock()

    def handle(self, record: LogRecord) -> None:
        """
        Send one record.

        Raises:
            NonRetriableError: the receiver will never accept it.
            CallFailedError, urllib3.exceptions.HTTPError: the receiver may accept it later.
        """
        key = idempotency_key(str(message_id(self._topic, record)))
        headers = {"Content-Type": "application/json", IDEMPOTENCY_KEY: key, **self._login}
        try:
            answer = self._http.request("POST", self._url, body=record.value() or b"", headers=headers)
        except urllib3.exceptions.ReadTimeoutError as error:
            why = f"gave no complete answer within {self._timeout_s:g} s (--timeout-s)"
            raise CallFailedError(f"{masked_url(self._url)} {why}") from error
        outcome = RequestOutcome.of(answer.status)
        if outcome is RequestOutcome.SENT:
            return
        reason = f"{masked_url(self._url)} answered {answer.status}: {answer.data[:200].decode('utf-8', 'replace')}"
        raise NonRetriableError(reason) if outcome is RequestOutcome.REFUSED else CallFailedError(reason)

    def give_up(self, record: LogRecord, error: Exception, attempts: int) -> None:
        """
        Write the record unchanged to the dead-letter topic; return once the brokers have acknowledged it.

        Raises:
            RetryLater: they did not acknowledge it in time.
            KafkaFailure: they refused it.
        """
        source = message_id(self._topic, record)
        why = f"failed {quantity(attempts, 'time')}; last error: {type(error).__name__}: {error}"
        errors = {
            ERROR_REASON: REASON,
            ERROR_EXCEPTION: type(error).__name__,
            ERROR_MESSAGE: why,
            ERROR_TOPIC: self._topic,
            ERROR_PARTITION: str(record.partition()),
            ERROR_OFFSET: str(record.offset()),
        }
        carried = record.headers() or []
        headers: list[tuple[str, str | bytes | None]] = [*carried, *errors.items()]
        if SourcePosition.of(carried) is None:
            headers += source.headers()
        failures: list[KafkaError] = []

        def delivered(failure: KafkaError | None, _message: object) -> None:
            if failure is not None:
                failures.append(failure)

        what = f"dead letter of {self._topic}[{record.partition()}] offset {record.offset()}"
        with self._writing, mapped(what):
            self._writer.produce(
                self._dead_letter, record.value(), record.key(), on_delivery=delivered, headers=headers
            )
            left = self._writer.flush(_WRITE_S)
            if failures and not (failures[0].retriable() or failures[0].code() == KafkaError._MSG_TIMED_OUT):  # noqa: SLF001 - the library's public name
                raise KafkaException(failures[0])
            if left or failures:
                self._writer = self._made()  # drops what is queued; a client may have lost the brokers for good
                to_stderr(f"{what}: not acknowledged within {_WRITE_S:g} s, will try again")
                raise RetryLater(what)

    def close(self) -> None:
        self._http.clear()


GROUP = "brew-caller"
DEAD_LETTER = "brew.calls.dlq"
_REACH_S = 12.0
_ASK_S = 30.0


def _url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    return checked_http(value, "--url")


@click.command("call")
@click.option("--url", required=True, callback=_url, help="URL to post each record's value to.")
@loop_options
@group_option(GROUP, "Consumer group; its committed offset is the position.")
@option("--timeout-s", type=click.FloatRange(0, 3600, min_open=True), default=5.0, help="Maximum seconds for one call.")
@option("--virtual-partitions", default=1, metavar="N", help="Maximum number of concurrent calls.")
@option(
    "--most-uncovered",
    default=1000,
    help="Maximum records of a partition above its position; a crash repeats them, and those of the last 2 s.",
)
@option("--attempts", default=5, help="Maximum number of attempts per record.")
@option("--back-off-s", default=0.1, help="Seconds of back-off after the first failure.")
@option("--most-back-off-s", default=10.0, help="Maximum back-off in seconds; it doubles with each failure.")
@option(
    "--on-failure",
    type=click.Choice([str(choice) for choice in OnFailure]),
    default=str(OnFailure.DEAD_LETTER),
    help="After the last attempt: write a dead letter and continue, or stop before the record.",
)
@option("--dead-letter", default=DEAD_LETTER, metavar="TOPIC", help="Dead-letter topic; created if missing.")
def call_command(url: str, group: str, *, dead_letter: str, as_json: bool, **given: Any) -> int:
    """
    Post every record to an HTTP service: N concurrent calls, in order per key.

    At least once: a crash repeats calls (with the same Idempotency-Key) and never skips one. A record whose call
    keeps failing blocks only its own key.

    Examples:
      python -m downstream call --url http://127.0.0.1:8080/orders
      python -m downstream call --url http://127.0.0.1:8080/orders --virtual-partitions 16 --follow
      python -m downstream call --url http://127.0.0.1:8080/orders --on-failure stop --attempts 10
    """
    checked_topic(dead_letter, "--dead-letter")
    calls = given["virtual_partitions"]
    retries = Retries(given["attempts"], given["back_off_s"], given["most_back_off_s"])
    settings = VirtualSettings(calls, given["most_uncovered"], retries, OnFailure(given["on_failure"]))
    loop = loop_settings(given, group)
    if loop.claims is not None and loop.claims.flow is DeliverySemantics.AT_MOST_ONCE:
        raise UsageError(
            "--flow is at-most-once, but calls that fail are repeated, and records that were read ahead would be "
            "skipped at each hand-over of a partition; leave it at at-least-once"
        )
    if settings.on_failure is OnFailure.DEAD_LETTER and dead_letter == loop.topic:
        raise UsageError(
            f"--dead-letter is {dead_letter!r}, the topic that is read (--topic): a record that fails would be read "
            "again and again; name another one"
        )
    loop = dataclasses.replace(loop, batch=min(loop.batch, settings.batch))
    stop = stop_event(follow=loop.follow)
    if settings.on_failure is OnFailure.DEAD_LETTER:
        _make_dead_letter_topic(loop.connection, loop.topic, dead_letter)
    caller = Caller(url, given["timeout_s"], loop.connection, loop.topic, dead_letter, calls)
    virtual = VirtualPartitions(settings, caller, stop, follow=loop.follow)
    began = time.monotonic()
    try:
        consume("downstream call", loop, virtual, given, stop)
    finally:
        caller.close()
    done, seconds = virtual.result, round(time.monotonic() - began, 3)
    if as_json:
        summary = {"calls": done.effects, "retries": done.retries, "dead_letters": done.given_up, "seconds": seconds}
        click.echo(json.dumps(summary))
    else:
        sent, dead_letters = quantity(done.effects, "call"), quantity(done.given_up, "dead letter")
        click.echo(f"{sent}, {done.retries} retries, {dead_letters}, {seconds:.1f} s")
    return ExitCode.DONE


def _make_dead_letter_topic(connection: Connection, topic: str, dead_letter: str) -> None:
    reach(connection, Deadline(_REACH_S))
    client, deadline = admin(connection), Deadline(_ASK_S)
    source = topics.describe_one(client, topic, deadline)
    wanted = topics.TopicSpec(dead_letter, source.partitions, roomier_limit(client, topic, deadline))
    topics.create(client, [wanted], deadline)
    topics.describe_all(client, [dead_letter], deadline)
