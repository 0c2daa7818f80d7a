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

from brew.cli import bootstrap_option
from brew.connection import Connection
from brew.errors import BrewError, UsageError
from brew.names import ExitCode
from proof.commands import connected, json_option, say, say_json
from proof.wire.late import SCRIPTS
from proof.wire.product import BELIEVED_FROM, CELLS, against_pipeline
from proof.wire.proxy import HOST, WireProxy
from proof.wire.rules import NetworkConditions, Rule, Trap
from proof.wire.torn import F11, SCRIPT_DESCRIPTIONS, Result, conclusion, experiment, seen_by_reader, timelines

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
    shape = NetworkConditions(latency_ms / 1000, jitter_ms / 1000, rate_kbit * 125, loss)
    first = [Rule.of(_object(text)) for text in rules]
    with WireProxy(bootstrap, host=host, ports=(port,), shape=shape, seed=seed) as running:
        control = _Control(running)
        _say({"bootstrap": running.bootstrap})
        for rule in first:
            control.add(rule)
        threading.Thread(target=control.listen, daemon=True).start()
        signal.pause()  # SIGTERM and SIGINT raise `Stopped`
    return ExitCode.DONE


class _Control:
    """Reads orders from stdin and prints answers, one JSON object per line."""

    def __init__(self, running: WireProxy) -> None:
        self._proxy = running
        self._traps: dict[int, Trap] = {}

    def add(self, rule: Rule) -> None:
        trap = self._proxy.add(rule)
        number = trap.number
        self._traps[number] = trap
        _say({"rule": number})
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
        """Obey orders until stdin ends; the proxy keeps running after that."""
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
                self._proxy.reshape(NetworkConditions(**order["shape"]))
            except TypeError as error:
                raise UsageError(f"shape: {error}; its fields are latency_s, jitter_s, rate, loss") from error
        elif "timeline" in order:
            events = [event.document() for event in self._proxy.events()]
            _say({"timeline": events, "counts": self._proxy.timeline.counts()})
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
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text.strip()!r} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{text.strip()!r} is no JSON object")
    return document


_speaking = threading.Lock()


def _say(message: Mapping[str, object]) -> None:
    with _speaking:
        print(json.dumps(message), flush=True)


_NARROW = 100
_WIDE = 144


@click.command()
@bootstrap_option
@click.option("--tries", type=click.IntRange(1), default=30, show_default=True, help="Tries of each writer.")
@click.option(
    "--writer",
    type=click.Choice(["reuse", "strict", "both", "pipeline"]),
    default="both",
    show_default=True,
    help="See above; both: reuse and strict take turns.",
)
@click.option(
    "--script",
    "scripts",
    type=click.Choice(sorted(SCRIPTS)),
    multiple=True,
    default=F11,
    show_default=True,
    help="What is held back; several take turns.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which script begins.")
@click.option("--show", is_flag=True, help="Print the frames of the first tries of both writers side by side.")
@json_option
def torn(
    bootstrap: str, tries: int, writer: str, scripts: Sequence[str], seed: int, *, show: bool, as_json: bool
) -> int:
    """
    Hold a frame of one transaction back, release it inside the next one, and see who is hurt (F11, F12).

    The writer `reuse` keeps its producer, as tutorials do; it has to show the fault, or the experiment is not believed.
    The writer `strict` is the pipeline's own transaction, with a producer each; `pipeline` is the pipeline itself,
    a process behind the proxy, judged by the checker (it takes the first script only). Exit codes: 0 strict clean
    in every try (and the control torn), 1 strict hurt, 3 not believed or inconclusive.

    \b
    Examples:
      python -m proof torn --tries 100
      python -m proof torn --writer strict --tries 1000 --json
      python -m proof torn --writer pipeline --tries 1000
      python -m proof torn --script late-offsets --tries 20
      python -m proof torn --tries 2 --show
    """  # noqa: D301 - click's own mark
    if show and (writer != "both" or as_json):
        raise UsageError("--show puts both writers side by side; leave --writer and --json out")
    connection = connected(bootstrap)
    if writer == "pipeline":
        return _pipeline(connection, tries, scripts[0], as_json=as_json)
    chosen = ["reuse", "strict"] if writer == "both" else [writer]
    results = [experiment(connection, name, tries, scripts, seed=seed) for name in chosen]
    if as_json:
        say_json({"tries": tries, "scripts": list(scripts), "seed": seed, "writers": [r.document() for r in results]})
    else:
        _print(results, show=show)
    return _exit_code(results)


def _pipeline(connection: Connection, tries: int, script: str, *, as_json: bool) -> int:
    result = against_pipeline(connection, tries, SCRIPTS[script][1].api)
    answers = ", ".join(f"{name} x {count}" for name, count in sorted(result.late.items()))
    text = f"the pipeline behind the proxy, {result.api} late in {tries} tries: answered {answers}\n"
    text += f"{result.verdict} {result.trouble}({result.seconds:.1f} s)"
    say(result.document(), text, as_json=as_json)
    return {"proven": ExitCode.DONE, "violated": ExitCode.VIOLATION}.get(result.verdict, ExitCode.REFUSED)


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


def _exit_code(results: Sequence[Result]) -> int:
    by_name = {result.writer: result for result in results}
    strict, control = by_name.get("strict"), by_name.get("reuse")
    if strict is not None and strict.tally.broken:
        return ExitCode.VIOLATION
    if strict is not None and strict.tally.inconclusive:
        return ExitCode.REFUSED
    if control is not None and control.share_broken < BELIEVED_FROM:
        return ExitCode.REFUSED
    return ExitCode.DONE


@click.command("wire-cell")
@click.argument("name", type=click.Choice(sorted(CELLS)))
@bootstrap_option
@click.option("--seed", type=int, default=1, show_default=True, help="Equal seeds do the same.")
@json_option
def wire_cell(name: str, bootstrap: str, seed: int, *, as_json: bool) -> int:
    """
    Run one cell of the wire proxy's own experiments and print its result.

    \b
    Examples:
      python -m proof wire-cell F11-end-txn-control --seed 2
      python -m proof wire-cell F12-offsets-strict --json
    """  # noqa: D301
    result: dict[str, Any] = CELLS[name](connected(bootstrap), seed)
    text = f"{name} seed {seed}: {result['verdict']} ({result['seconds']} s) {result['note']}"
    say(result, text, as_json=as_json)
    if result["verdict"] == "inconclusive":
        return ExitCode.REFUSED
    return ExitCode.DONE if result["verdict"] == result["expected"] else ExitCode.VIOLATION
