"""The wire proxy as a process: options, rules on the command line, and control in JSON lines."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click

from proof.wire.proxy import HOST
from proof.wire.rules import Rule, Trap
from proof.wire.running import WireProxy
from proof.wire.shape import Shape
from protocol.client_option import bootstrap_option
from protocol.errors import BrewError, UsageError
from protocol.names import ExitCode

_ORDERS = ("release", "drop", "cut", "remove")


@click.command()
@bootstrap_option
@click.option("--host", default=HOST, show_default=True, help="Where to listen, and what clients are told.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, show_default=True, help="First broker's; 0: free.")
@click.option("--rule", "rules", multiple=True, metavar="JSON", help="A rule to begin with, repeatable.")
@click.option("--latency-ms", type=click.FloatRange(0), default=0.0, help="Each way.")
@click.option("--jitter-ms", type=click.FloatRange(0), default=0.0, help="To both sides of the latency.")
@click.option("--rate-kbit", type=click.FloatRange(0), default=0.0, help="Each way of each connection; 0: no limit.")
@click.option("--loss", type=click.FloatRange(0, 1), default=0.0, help="Share of frames that are sent twice.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of jitter and loss.")
def proxy(
    bootstrap: str,
    host: str,
    port: int,
    rules: Sequence[str],
    latency_ms: float,
    jitter_ms: float,
    rate_kbit: float,
    loss: float,
    seed: int,
) -> int:
    """
    Stand between clients and a cluster, and hold, drop, delay or cut single frames, until SIGTERM.

    The first line printed is {"bootstrap": ...}: where clients begin. Lines on stdin give orders, lines on stdout tell
    what happened. A rule has the fields api, action (hold drop delay cut), side (request reply), transactional_id,
    client_id, committed, nth, times, cut, delay_s, jitter_s.

    \b
    Examples:
      python -m proof proxy --bootstrap localhost:9092
      python -m proof proxy --latency-ms 300 --jitter-ms 100
      python -m proof proxy --rule '{"api": "EndTxn", "action": "hold", "cut": true}'
    \b
    Orders:
      {"rule": {"api": "InitProducerId", "side": "reply", "action": "cut"}}     answers {"rule": 1}
      {"release": 1}   {"drop": 1}   {"cut": 1}   {"remove": 1}
      {"shape": {"latency_s": 0.3}}   {"timeline": true}
    """  # noqa: D301 - click's own mark
    shape = Shape(latency_ms / 1000, jitter_ms / 1000, rate_kbit * 125, loss)
    first = [Rule.of(_object(text)) for text in rules]
    with WireProxy(bootstrap, host=host, ports=(port,), shape=shape, seed=seed) as running:
        control = _Control(running)
        _say({"bootstrap": running.bootstrap})
        for rule in first:
            control.add(rule)
        threading.Thread(target=control.listen, daemon=True).start()
        signal.pause()  # SIGTERM and SIGINT leave as `Stopped`
    return ExitCode.DONE


class _Control:
    """Orders in, answers out, a JSON object per line."""

    def __init__(self, running: WireProxy) -> None:
        self._proxy = running
        self._traps: dict[int, Trap] = {}

    def add(self, rule: Rule) -> None:
        trap = self._proxy.add(rule)
        self._traps[trap.number] = trap
        _say({"rule": trap.number})
        number = trap.number
        trap.tell(
            lambda caught: _say(
                {
                    "caught": number,
                    "connection": caught.connection,
                    "api": caught.head.title,
                    "transactional_id": caught.details.transactional_id,
                    "epoch": caught.details.epoch,
                }
            ),
            lambda reply: _say({"answered": number, "error": reply.error}),
        )

    def listen(self) -> None:
        """Until stdin ends; the proxy goes on without."""
        for line in sys.stdin:
            if line.strip():
                try:
                    self._obey(_object(line))
                except BrewError as error:
                    _say({"error": str(error)})

    def _obey(self, order: Mapping[str, Any]) -> None:
        if "rule" in order:
            self.add(Rule.of(order["rule"]))
        elif "shape" in order:
            try:
                self._proxy.reshape(Shape(**order["shape"]))
            except TypeError as error:
                raise UsageError(f"shape: {error}; its fields are latency_s, jitter_s, rate, loss") from error
        elif "timeline" in order:
            told = [event.document() for event in self._proxy.events()]
            _say({"timeline": told, "counts": self._proxy.timeline.counts()})
        else:
            self._settle(order)

    def _settle(self, order: Mapping[str, Any]) -> None:
        word = next((word for word in _ORDERS if word in order), None)
        trap = self._traps.get(order[word]) if word else None
        if word is None or trap is None:
            raise UsageError(f"order {dict(order)}: give one of {', '.join(_ORDERS)} with a rule's number")
        if word == "remove":
            self._proxy.remove(trap)
        else:
            {"release": trap.release, "drop": trap.drop, "cut": trap.cut}[word]()
        _say({word: trap.number})


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text.strip()!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{text.strip()!r} is no JSON object")
    return found


_speaking = threading.Lock()


def _say(told: Mapping[str, object]) -> None:
    with _speaking:
        print(json.dumps(told), flush=True)
