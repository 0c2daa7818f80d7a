"""`python -m downstream call`: its options, and one run of it."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import Any

import click

from downstream.address import checked_http
from downstream.consume.loop import Loop
from downstream.consume.options import loop_options, loop_settings
from downstream.consume.settings import GRACE_S
from downstream.observed import ObservedHandler, Watched, observed
from downstream.virtual.call import Caller, CallSettings
from downstream.virtual.member import SpreadingMember
from downstream.virtual.partitions import VirtualPartitions, VirtualSettings
from downstream.virtual.retries import OnFailure, Retries
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka import topics
from protocol.kafka.clients import admin, reach
from protocol.names import ExitCode, checked_topic
from protocol.stopping import stop_on_signals

GROUP = "brew-caller"
DEAD_LETTER = "brew.calls.dlq"
_REACH_S = 12.0
_ASK_S = 30.0


def _url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    return checked_http(value, "--url")


@click.command("call")
@click.option("--url", required=True, callback=_url, help="Where each record's value is posted to.")
@loop_options
@click.option("--group", default=GROUP, show_default=True, metavar="NAME", help="Its committed offset is the position.")
@click.option("--timeout-s", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True, help="One call.")
@click.option("--virtual-partitions", type=int, default=1, show_default=True, metavar="N", help="Calls at a time.")
@click.option(
    "--most-uncovered",
    type=int,
    default=1000,
    show_default=True,
    help="Records of a partition above its position; a crash repeats them, and what was done up to 2 s before.",
)
@click.option("--attempts", type=int, default=5, show_default=True, help="How often a record is tried.")
@click.option("--back-off-s", type=float, default=0.1, show_default=True, help="Pause after the first failure.")
@click.option("--most-back-off-s", type=float, default=10.0, show_default=True, help="Pauses double up to this.")
@click.option(
    "--on-failure",
    type=click.Choice([str(one) for one in OnFailure]),
    default=str(OnFailure.DEAD_LETTER),
    show_default=True,
    help="After the last attempt: write a dead letter and go on, or stop before the record.",
)
@click.option("--dead-letter", default=DEAD_LETTER, show_default=True, metavar="TOPIC", help="Made if it is missing.")
def call_command(
    url: str,
    group: str,
    timeout_s: float,
    virtual_partitions: int,
    most_uncovered: int,
    attempts: int,
    back_off_s: float,
    most_back_off_s: float,
    on_failure: str,
    dead_letter: str,
    as_json: bool,
    **given: Any,
) -> int:
    """
    Post every record to an HTTP service, N at a time, those of one key in order.

    At least once: a crash repeats calls (same Idempotency-Key), and never skips one. A record whose call keeps
    failing holds up its own key only.

    \b
    Examples:
      python -m downstream call --url http://127.0.0.1:8080/orders
      python -m downstream call --url http://127.0.0.1:8080/orders --virtual-partitions 16 --follow
      python -m downstream call --url http://127.0.0.1:8080/orders --on-failure stop --attempts 10
    """  # noqa: D301 - click's own mark
    checked_topic(dead_letter, "--dead-letter")
    settings = VirtualSettings(
        virtual_partitions, most_uncovered, Retries(attempts, back_off_s, most_back_off_s), OnFailure(on_failure)
    )
    loop = loop_settings(given, group)
    loop = dataclasses.replace(loop, batch=min(loop.batch, settings.batch))
    stop = threading.Event()
    stop_on_signals(stop, GRACE_S, follow=loop.follow)
    if settings.on_failure is OnFailure.DEAD_LETTER:
        _make_dead_letter_topic(loop.connection, loop.topic, dead_letter)
    caller = Caller(CallSettings(url, timeout_s), loop.connection, loop.topic, dead_letter, virtual_partitions)
    virtual = VirtualPartitions(settings, caller)
    began = time.monotonic()
    handler = SpreadingMember(virtual, stop, follow=loop.follow)
    try:
        with observed(Watched.loop("downstream call", loop), given) as recorder:
            watched = ObservedHandler(handler, recorder, loop.topic)
            Loop(loop, watched, stop, lambda text: click.echo(text, err=True)).run()
    finally:
        caller.close()
    told = {
        "calls": virtual.told.effects,
        "retries": virtual.told.retries,
        "dead_letters": virtual.told.given_up,
        "seconds": round(time.monotonic() - began, 3),
    }
    click.echo(json.dumps(told) if as_json else _text(told))
    return ExitCode.DONE


def _make_dead_letter_topic(connection: Connection, topic: str, dead_letter: str) -> None:
    reach(connection, Deadline(_REACH_S))
    client, deadline = admin(connection), Deadline(_ASK_S)
    source = topics.existing(client, topic, deadline)
    limit = str(topics.max_message_bytes(client, topic, deadline) + 65_536)
    topics.create(client, [topics.Wanted(dead_letter, source.partitions, {topics.MAX_MESSAGE_BYTES: limit})], deadline)
    topics.describe_all(client, [dead_letter], deadline)


def _text(told: dict[str, float]) -> str:
    return (
        f"{told['calls']} calls, {told['retries']} retries, {told['dead_letters']} dead letters, "
        f"{told['seconds']:.1f} s"
    )
