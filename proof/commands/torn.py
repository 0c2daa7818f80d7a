"""Commands around the wire proxy: the torn transaction, single cells, and the proxy as a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from proof.commands.options import connected, json_option, say_json
from proof.wire.cells import BELIEVED_FROM, CELLS
from proof.wire.late import SCRIPTS
from proof.wire.product import against_pipeline
from proof.wire.show import STORIES, conclusion, seen_by_reader, timelines
from proof.wire.torn import F11, Result, experiment
from protocol.client_option import bootstrap_option
from protocol.connection import Connection
from protocol.errors import UsageError
from protocol.names import ExitCode

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
    results = [experiment(connection, one, tries, scripts, seed=seed) for one in chosen]
    if as_json:
        say_json({"tries": tries, "scripts": list(scripts), "seed": seed, "writers": [r.document() for r in results]})
    else:
        _print(results, show=show)
    return _exit_code(results)


def _pipeline(connection: Connection, tries: int, script: str, *, as_json: bool) -> int:
    result = against_pipeline(connection, tries, SCRIPTS[script][1].api)
    if as_json:
        say_json(result.document())
    else:
        answers = ", ".join(f"{name} x {count}" for name, count in sorted(result.late.items()))
        click.echo(f"the pipeline behind the proxy, {result.api} late in {tries} tries: answered {answers}")
        click.echo(f"{result.verdict} {result.trouble}({result.seconds:.1f} s)")
    return {"proven": ExitCode.DONE, "violated": ExitCode.VIOLATION}.get(result.verdict, ExitCode.REFUSED)


def _print(results: Sequence[Result], *, show: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal or console.width < _NARROW:
        console = Console(highlight=False, width=_WIDE)
    if show:
        for at in range(min(len(results[0].frames), len(results[0].tries), 2)):
            script = results[0].tries[at].script
            console.rule(script, align="left")
            console.print(STORIES.get(script, ""), "\n")
            console.print(timelines(results[0], results[1], at))
            console.print(seen_by_reader(results, at), "\n")
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
    if as_json:
        say_json(result)
    else:
        click.echo(f"{name} seed {seed}: {result['verdict']} ({result['seconds']} s) {result['note']}")
    if result["verdict"] == "inconclusive":
        return ExitCode.REFUSED
    return ExitCode.DONE if result["verdict"] == result["expected"] else ExitCode.VIOLATION
