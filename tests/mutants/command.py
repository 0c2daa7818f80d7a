"""The command line: list the mutants, kill them all on a real broker, or run the pipeline as one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import click
from harness.pipeline import Stage
from harness.servers import Broker, Names, any_broker
from rich.console import Console
from rich.table import Table

import brew.cli
import pipeline.__main__
from brew.errors import UsageError
from brew.names import ExitCode
from mutants.catalogue import EVERY, HARMLESS, MUTANTS
from mutants.experiment import Seen, experiments
from mutants.layers import HARMLESS_IN_LAYERS, LAYER_BUGS, copied, is_red
from mutants.mutant import Changes, Mutant
from mutants.scenarios import SCENARIOS
from proof.commands import json_option, print_json

_EPILOG = """\b
Examples:
  python -m tests.mutants kill                                all of them, on a broker of their own
  python -m tests.mutants kill no-locate producer-reused --json
  python -m tests.mutants layers                              the bugs that unit tests see
  python -m tests.mutants as no-locate run --master none      the pipeline with this bug, as a process

\b
Exit codes: 0 all killed, 1 one survived or a control went red, 64 wrong usage."""


@click.group(epilog=_EPILOG)
def cli() -> None:
    """Deliberate bugs in the protocol, and the checks that see them."""
    os.environ.setdefault("READER", "connector")  # some of the bugs are in its reading code


@cli.command("list")
@json_option
def list_command(*, as_json: bool) -> ExitCode:
    """Name every mutant, and tell what is wrong with it."""
    if as_json:
        print_json([_description(one) for one in EVERY.values()])
    else:
        click.echo("\n".join(f"{one.name}: {one.wrong}" for one in EVERY.values()))
    return ExitCode.DONE


@cli.command("kill")
@click.argument("names", nargs=-1)
@click.option("--bootstrap", metavar="HOST:PORT", help="A broker to use; else one is started for the occasion.")
@json_option
def kill_command(names: tuple[str, ...], *, bootstrap: str | None, as_json: bool) -> ExitCode:
    """Run each mutant in its scenario, with the unchanged product beside it, and tell what killed it."""
    chosen = [_mutant(name) for name in names or EVERY]
    rows: list[dict[str, Any]] = []
    with nullcontext(Broker(bootstrap)) if bootstrap else any_broker() as broker:
        for scenario in SCENARIOS:
            mutants = [one for one in chosen if one.on == scenario]
            if mutants:
                rows += _rows(scenario, mutants, broker)
    unexpected = [row["name"] or f"the product in {row['scenario']}" for row in rows if not row["as_it_should"]]
    if as_json:
        print_json({"mutants": rows, "not_as_they_should": unexpected})
    else:
        _show(rows)
        killed = sum(row["killed"] for row in rows)
        click.echo(f"{killed} killed; not as they should: {', '.join(unexpected) or 'none'}")
    return ExitCode.VIOLATION if unexpected else ExitCode.DONE


@cli.command("layers")
@click.argument("names", nargs=-1)
def layers_command(names: tuple[str, ...]) -> ExitCode:
    """Put each bug of the layers that decide into a copy of the tree, and run the unit test that has to go red."""
    every = {one.name: (one, True) for one in LAYER_BUGS} | {one.name: (one, False) for one in HARMLESS_IN_LAYERS}
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no bug of a layer; docs/proof/mutants.md names them")
    failures = 0
    with copied() as home:
        for bug, wanted in (every[name] for name in names or every):
            as_expected = is_red(bug, home) is wanted
            failures += not as_expected
            mark, color = "✓" if as_expected else "✗", "red" if as_expected is wanted else "green"
            click.echo(f"{mark} {bug.name}: {bug.tested_by} is {color}")
    return ExitCode.VIOLATION if failures else ExitCode.DONE


@cli.command("as", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def as_command(name: str, arguments: tuple[str, ...]) -> None:
    """Be the pipeline with the bug NAME; what follows is the pipeline's own command line."""
    _mutant(name).change(Changes())  # never reverted: the process ends with it
    sys.argv = ["pipeline", *arguments]
    pipeline.__main__.main()


def _mutant(name: str) -> Mutant:
    if name not in EVERY:
        raise UsageError(f"{name!r} is no mutant; `python -m tests.mutants list` names them")
    return EVERY[name]


def _description(one: Mutant) -> dict[str, Any]:
    return {"name": one.name, "wrong": one.wrong, "breaks": one.breaks, "scenario": one.on, "named": one.named}


def _rows(scenario: str, mutants: Iterable[Mutant], broker: Broker) -> list[dict[str, Any]]:
    control, tried = experiments(scenario, mutants, lambda name: Stage(broker, Names.fresh(name)))
    results: list[tuple[dict[str, Any], Seen, bool]] = [({"name": "", "scenario": scenario}, control, control.proven)]
    results += [(_description(one), seen, as_it_should(one, seen)) for one, seen in tried]
    return [
        {
            **description,
            "control": not description["name"],
            "verdict": seen.verdict,
            "killed": seen.red,
            "seen_as": [*dict.fromkeys([*seen.named, *(sign.partition(":")[0] for sign in seen.signs)])],
            "anomalies": seen.named,
            "signs": seen.signs,
            "doubts": seen.doubts,
            "seconds": round(seen.seconds, 2),
            "as_it_should": as_expected,
        }
        for description, seen, as_expected in results
    ]


def as_it_should(one: Mutant, seen: Seen) -> bool:
    """Return whether a mutant was detected, by its own name; a harmless one must be proven."""
    if one.name in HARMLESS:
        return seen.proven
    return one.name in MUTANTS and seen.red and one.named in seen.by


def _show(rows: Iterable[dict[str, Any]]) -> None:
    """Print a table: each scenario with its control, and its mutants below."""
    table = Table("", "mutant", "breaks", "seen as", box=None, pad_edge=False)
    table.columns[1].no_wrap = True
    for row in rows:
        mark = "✓" if row["as_it_should"] else "✗"
        if row["control"]:
            table.add_section()
            table.add_row(mark, f"[dim]in {row['scenario']}, without a bug[/dim]", "", f"[dim]{row['verdict']}[/dim]")
        else:
            table.add_row(mark, row["name"], row["breaks"], ", ".join(row["seen_as"]) or row["verdict"])
    Console().print(table)


def main() -> None:
    brew.cli.run(cli, "mutants")
