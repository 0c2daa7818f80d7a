"""Commands of the wire proxy: torn transactions, single cells, and the proxy as a process."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console

from brew.cli import bootstrap_option, flag, option, repeatable, typed_option
from brew.errors import BrewError, UsageError
from brew.names import ExitCode
from proof.commands import connected, json_option, print_json
from proof.wire.late import SCRIPTS
from proof.wire.proxy import HOST, WireProxy
from proof.wire.rules import CaughtFrame, NetworkConditions, Rule, Trap
from proof.wire.torn import F11, SCRIPT_DESCRIPTIONS, Result, conclusion, experiment, seen_by_reader, timelines

_ORDERS = ("release", "drop", "cut", "remove")
_AMOUNT, _SHARE = click.FloatRange(0), click.FloatRange(0, 1)
_speaking = threading.Lock()
_NARROW, _WIDE = 100, 144


@click.command()
@bootstrap_option
@option("--host", default=HOST, help="Address to listen on and to advertise to clients.")
@typed_option("--port", click.IntRange(0, 65_535), 0, "Port for the first broker; 0 picks a free port.")
@repeatable("--rule rules", "Rule that applies from the start; repeatable.", "JSON")
@typed_option("--latency-ms", _AMOUNT, 0.0, "Latency added in each direction, in milliseconds.")
@typed_option("--jitter-ms", _AMOUNT, 0.0, "Random variation of the latency, plus or minus, in milliseconds.")
@typed_option("--rate-kbit", _AMOUNT, 0.0, "Bandwidth per connection and direction, in kbit/s; 0 means no limit.")
@typed_option("--loss", _SHARE, 0.0, "Fraction of frames delayed by 200 ms, as if a packet were lost and sent again.")
@typed_option("--seed", int, 0, "Seed of the random jitter and loss.")
def proxy(bootstrap: str, host: str, port: int, rules: Sequence[str], seed: int, **given: float) -> None:
    """
    Run a proxy between clients and brokers that can hold, drop, delay or cut single frames, until SIGTERM.

    The first line of output is {"bootstrap": ...}, the address for clients. The proxy reads commands from stdin and
    prints events to stdout, as one JSON object per line. A rule has the fields api, action (hold, drop, delay or cut),
    side (request or reply), transactional_id, client_id, committed, nth, times, cut, delay_s and jitter_s.

    Examples:
      python -m proof proxy --bootstrap localhost:9092
      python -m proof proxy --latency-ms 300 --jitter-ms 100
      python -m proof proxy --rule '{"api": "EndTxn", "action": "hold", "cut": true}'
    \b
    Commands:
      {"rule": {"api": "InitProducerId", "side": "reply", "action": "cut"}}     answers {"rule": 1}
      {"release": 1}   {"drop": 1}   {"cut": 1}   {"remove": 1}
      {"shape": {"latency_s": 0.3}}   {"timeline": true}
    """  # noqa: D301 - click's own mark
    latency_s, jitter_s = given["latency_ms"] / 1000, given["jitter_ms"] / 1000
    shape = NetworkConditions(latency_s, jitter_s, given["rate_kbit"] * 125, given["loss"])
    first = [Rule.of(_object(text)) for text in rules]
    with WireProxy(bootstrap, host=host, ports=(port,), shape=shape, seed=seed) as running:
        control = _Control(running)
        _print_line({"bootstrap": running.bootstrap})
        for rule in first:
            control.add(rule)
        threading.Thread(target=control.listen, daemon=True).start()
        signal.pause()  # SIGTERM and SIGINT raise `Stopped`


class _Control:
    """Reads orders from stdin and prints answers, one JSON object per line."""

    def __init__(self, running: WireProxy) -> None:
        self._proxy = running
        self._traps: dict[int, Trap] = {}

    def add(self, rule: Rule) -> None:
        trap = self._proxy.add(rule)
        number = trap.number
        self._traps[number] = trap
        _print_line({"rule": number})

        def print_caught(caught: CaughtFrame) -> None:
            details = caught.details
            frame = {"caught": number, "connection": caught.connection, "api": caught.header.title}
            _print_line(frame | {"transactional_id": details.transactional_id, "epoch": details.epoch})

        trap.tell(print_caught, lambda reply: _print_line({"answered": number, "error": reply.error}))

    def listen(self) -> None:
        """Obey orders until stdin ends; the proxy keeps running after that."""
        for line in sys.stdin:
            if line.strip():
                try:
                    self._execute(_object(line))
                except BrewError as error:
                    _print_line({"error": str(error)})

    def _execute(self, order: Mapping[str, Any]) -> None:
        if "rule" in order:
            self.add(Rule.of(order["rule"]))
        elif "shape" in order:
            try:
                self._proxy.shape = NetworkConditions(**order["shape"])  # connections stay open
            except TypeError as error:
                raise UsageError(f"shape: {error}; give latency_s, jitter_s, rate, loss or retransmit_s") from error
        elif "timeline" in order:
            events = [event.document() for event in self._proxy.timeline.events()]
            _print_line({"timeline": events, "counts": self._proxy.timeline.counts()})
        else:
            self._change_trap(order)

    def _change_trap(self, order: Mapping[str, Any]) -> None:
        word = next((word for word in _ORDERS if word in order), None)
        trap = self._traps.get(order[word]) if word else None
        if word is None or trap is None:
            raise UsageError(f"command {dict(order)} is unknown; give one of {', '.join(_ORDERS)} with a rule's number")
        if word == "remove":
            self._proxy.remove(trap)
        else:
            {"release": trap.release, "drop": trap.drop, "cut": trap.cut}[word]()
        _print_line({word: trap.number})


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text.strip()!r} is not JSON ({error}); give one JSON object") from error
    if not isinstance(document, dict):
        raise UsageError(f"{text.strip()!r} is not a JSON object; give one")
    return document


def _print_line(message: Mapping[str, object]) -> None:
    with _speaking:
        print(json.dumps(message), flush=True)


@click.command()
@bootstrap_option
@typed_option("--tries", click.IntRange(1), 30, "Number of tries with each writer.")
@typed_option(
    "--writer",
    click.Choice(["reuse", "strict", "both"]),
    "both",
    "Writer to test, as described above; both: first reuse, then strict.",
)
@typed_option(
    "--script scripts",
    click.Choice(sorted(SCRIPTS)),
    F11,
    "Script to run, named after the frame that is late or lost; several take turns.",
    multiple=True,
)
@typed_option("--seed", int, 0, "Seed; selects the script to start with.")
@flag("--show", "Print the frames of the first two tries, both writers side by side.")
@json_option
def torn(
    bootstrap: str, tries: int, writer: str, scripts: Sequence[str], seed: int, *, show: bool, as_json: bool
) -> int:
    """
    Hold back a frame of one transaction, release it inside the next one, and check both transactions (F11, F12).

    The writer `reuse` uses one producer for all transactions, as tutorials do. It is the control: at least 95 % of its
    tries must be broken, otherwise the result is inconclusive. The writer `strict` is the pipeline's own transaction,
    with a new producer for each. The cells `F11-late-*` and `F12-late-*` of the campaign do it to the whole pipeline.
    Exit codes: 0 no try of strict broken, 1 at least one broken, 3 inconclusive.

    Examples:
      python -m proof torn --tries 100
      python -m proof torn --writer strict --tries 1000 --json
      python -m proof torn --script late-offsets --tries 20
      python -m proof torn --tries 2 --show
    """
    if show and (writer != "both" or as_json):
        raise UsageError("--show compares both writers as text; omit --writer and --json")
    connection = connected(bootstrap)
    chosen = ["reuse", "strict"] if writer == "both" else [writer]
    results = [experiment(connection, name, tries, scripts, seed=seed) for name in chosen]
    if as_json:
        print_json({"tries": tries, "scripts": list(scripts), "seed": seed, "writers": [r.document() for r in results]})
    else:
        _print(results, show=show)
    wrong = {result.verdict for result in results if result.verdict != result.expected}
    return ExitCode.VIOLATION if "violated" in wrong else ExitCode.REFUSED if wrong else ExitCode.DONE


def _print(results: Sequence[Result], *, show: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal or console.width < _NARROW:
        console = Console(highlight=False, width=_WIDE)
    if show:
        for number in range(min(len(results[0].frames), len(results[0].tries), 2)):
            script = results[0].tries[number].script
            console.rule(script, align="left")
            console.print(SCRIPT_DESCRIPTIONS.get(script, ""), "\n")
            console.print(timelines(results[0], results[1], number))
            console.print(seen_by_reader(results, number), "\n")
        console.rule("conclusion", align="left")
    for line in conclusion(results):
        console.print(line, soft_wrap=True)
    for result in results:
        for trouble in result.tally.troubles:
            console.print(f"{result.writer}: {trouble}", soft_wrap=True)
