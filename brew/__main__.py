"""
The console command `brew` (or `python -m brew`): the commands of all four programs under one name.

A command is imported when it is called, by the `module:name` that stands here; so `brew --help` and shell completion
load no command at all, and the one-line helps stand here, too. tests/unit/test_brew_command.py compares them with the
commands' own.

Names: the commands of `pipeline`, `downstream` and `proof` stand at the top level, those of `sandbox` below `brew
sandbox`. `setup` is the only name that two programs share: `brew setup` fetches Spark's jars, `brew sandbox setup` a
broker. Two more names would mislead at the top level; `LEFT_OUT` says why, and where those commands are.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

import brew.cli
from brew.cli import CONTEXT, PACKAGE, LazyGroup, called


class Listed(NamedTuple):
    """A command of `brew`: whose it is, where it is defined, and the first sentence of its help."""

    program: str
    target: str
    help: str


SECTIONS: dict[str, dict[str, Listed]] = {
    "Run": {
        "run": Listed("pipeline", "pipeline.__main__:run_command", "Drain the input topic and exit, or follow it."),
        "submit": Listed(
            "pipeline",
            "pipeline.__main__:submit_command",
            "Hand the run to spark-submit (the driver then lives where Spark puts it).",
        ),
        "init": Listed(
            "brew",
            "brew.project.command:init",
            "Make a small project: a transformation, a test that needs no Kafka, example records, a Makefile.",
        ),
        "setup": Listed(
            "pipeline",
            "brew.spark.setup:setup",
            "Fetch the jars with which Spark reads Kafka, and compare them with the checksums of this version.",
        ),
    },
    "Look": {
        "preflight": Listed(
            "pipeline",
            "operations.preflight:preflight",
            "Check all that the promise needs of the cluster, with the options of a run; writes nothing.",
        ),
        "lag": Listed(
            "pipeline",
            "operations.lag:lag",
            "Tell per partition how many records are left to read, how old the oldest of them is, and what it is "
            "doing.",
        ),
        "explain": Listed(
            "pipeline",
            "operations.explain.command:explain",
            "Tell an order's way: where it is, which copies of it lie in the logs, who sees them, and by which rule.",
        ),
        "show": Listed(
            "pipeline",
            "operations.show:show",
            "Show a topic's records: key, value, headers, time, place, and what became of each one's transaction.",
        ),
        "xray": Listed(
            "pipeline",
            "operations.xray.command:xray",
            "Show what lies in the logs: committed, aborted and open records and both kinds of markers, in offset "
            "order, with log start, last stable offset, high watermark and the group's position.",
        ),
        "ui": Listed(
            "pipeline",
            "operations.ui.server:ui",
            "Show in a browser what the group does: flow and phases per partition, transactions, the logs' tails, the "
            "last proof, preflight.",
        ),
        "top": Listed(
            "pipeline",
            "operations.ui.terminal:top",
            "Show on the terminal what the group does, as `brew ui` does in a browser, until q, SIGTERM or Ctrl-C.",
        ),
        "group-describe": Listed(
            "proof",
            "proof.commands.inspect:group_describe",
            "Show where the group stands: committed offset, last stable offset (LSO), log end and lag per partition.",
        ),
        "end-offsets": Listed(
            "proof",
            "proof.commands.inspect:end_offsets",
            "Show what lies in every partition: visible, waiting, aborted, open and control records.",
        ),
    },
    "Repair": {
        "doctor": Listed(
            "pipeline",
            "operations.doctor:doctor",
            "Find hanging and lingering transactions, say whose they are and who waits behind them; end them with "
            "--abort.",
        ),
        "dlq": Listed(
            "pipeline",
            "operations.dlq.command:dlq",
            "Dead letters: count them, look at one, write them back to the input, each at most once.",
        ),
        "resolve": Listed(
            "proof",
            "proof.commands.seed:resolve",
            "Abort the transaction that a dead producer left open, by fencing its id.",
        ),
    },
    "Beyond Kafka": {
        "count": Listed(
            "downstream",
            "downstream.__main__:count_command",
            "Count records, unique keys and duplicates, as one kind of reader sees them; exit 1 on duplicates.",
        ),
        "ledger": Listed(
            "downstream",
            "downstream.ledger.command:ledger_command",
            "Book enriched orders into PostgreSQL: rows, and balances per customer and tier, each order exactly once.",
        ),
        "receive": Listed(
            "downstream",
            "downstream.receive.command:receive_command",
            "Give customers points for their orders, one effect per message, however often it is delivered.",
        ),
        "totals": Listed(
            "downstream",
            "downstream.totals.command:totals_command",
            "Running totals per customer and per tier: orders, their sum, the discount given; each order counted once.",
        ),
        "call": Listed(
            "downstream",
            "downstream.virtual.call:call_command",
            "Post every record to an HTTP service, N at a time, those of one key in order.",
        ),
        "claims": Listed(
            "downstream",
            "downstream.claims.commands:claims_group",
            "Who owns which partition, by claim (docs/CLAIMS.md).",
        ),
    },
    "Prove": {
        "topics": Listed(
            "proof",
            "proof.commands.seed:topics",
            "Make the five topics that are missing; what is there stays as it is.",
        ),
        "seed": Listed(
            "proof",
            "proof.commands.seed:seed",
            "Write orders with unique keys, spread over all partitions and tiers.",
        ),
        "seed-customers": Listed(
            "proof",
            "proof.commands.seed:seed_customers",
            "Write customers' profiles: c-00001 and so on, the customers of the orders that `seed` writes.",
        ),
        "verify": Listed(
            "proof",
            "proof.commands.inspect:verify",
            "Prove that every visible record came out exactly once, transformed, or on the dead-letter topic.",
        ),
        "campaign": Listed(
            "proof",
            "proof.commands.campaign:campaign",
            "Break writers, brokers, networks and disks, one cell after another, and prove that nothing was lost or "
            "doubled.",
        ),
        "report": Listed(
            "proof",
            "proof.commands.report:report",
            "Make one page of a campaign's results: verdict, fault matrix, times, evidence, commands to run a cell "
            "again.",
        ),
        "claims-races": Listed(
            "proof",
            "proof.commands.claims:claims_races",
            "Have claimants race for the same partitions, round after round, on a claims topic made for it.",
        ),
        "proxy": Listed(
            "proof",
            "proof.commands.wire:proxy",
            "Stand between clients and a cluster, and hold, drop, delay or cut single frames, until SIGTERM.",
        ),
        "torn": Listed(
            "proof",
            "proof.commands.wire:torn",
            "Hold a frame of one transaction back, release it inside the next one, and see who is hurt (F11, F12).",
        ),
    },
    "Servers": {
        "sandbox": Listed("sandbox", "sandbox.__main__:cli", "Real servers on this machine, without containers."),
    },
}
COMMANDS = {name: listed for section in SECTIONS.values() for name, listed in section.items()}

LEFT_OUT = {
    "claims-member": ("proof", "only `claims-races` and the campaign start it"),
    "read": ("proof", "only the campaign starts it"),
    "replay": ("proof", "it repeats a cell of a campaign; dead letters are replayed by `brew dlq replay`"),
    "sink": ("downstream", "it is a server for trying `receive`, not a sink for Spark"),
    "wire-cell": ("proof", "it is an experiment with the wire proxy; `brew campaign` runs the fault matrix"),
}
"""Commands that `brew` does not have: name -> program that has it, why."""

_EPILOG = """\b
Examples:
  brew sandbox up                              one Kafka broker on localhost:9092
  brew topics                                  make the topics that are missing
  brew seed --count 300                        write orders to work on
  brew run                                     drain them and exit
  brew lag                                     show what is left, per partition
  brew verify                                  prove that every order came out exactly once
  brew lag --help                              options and examples of a command

\b
Completion of commands and options (click's own; zsh_source and fish_source work, too):
  eval "$(_BREW_COMPLETE=bash_source brew)"

\b
Exit codes: 0 done or proven, 1 violation found, 2 crashed on purpose, 3 refused or inconclusive, 64 wrong usage."""

_PROGRAMS = "pipeline|downstream|proof|sandbox"
# A program in a text, with the command behind it: `python -m proof verify`, `brew-sandbox up`, `pipeline lag`.
_NAMED = re.compile(rf"(python -m |brew-|(?<=`))({_PROGRAMS})\b(?![-\w])(?: ([a-z][a-z-]*))?")
_PREFIX = re.compile(rf"\A(?:{_PROGRAMS}): ")


class BrewGroup(LazyGroup):
    """Lists its commands in sections, from what stands here alone; each command speaks of `brew` when it is called."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return None if found is None else _reworded(found, self.as_called)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in LEFT_OUT and not ctx.resilient_parsing:
            program, why = LEFT_OUT[args[0]]
            ctx.fail(f"No such command {args[0]!r}: {why}. It is called with `python -m {program} {args[0]}`.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """As click writes them, in sections and without asking the commands."""
        column = max(map(len, COMMANDS))
        limit = formatter.width - 6 - column
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(column), _short(one.help, limit)) for name, one in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does it, without importing the commands."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=_short(COMMANDS[name].help)) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def as_called(self, text: str) -> str:
        """``text`` with the commands of the four programs named as those of `brew`; others stay as they are."""
        return _NAMED.sub(_as_typed, _PREFIX.sub(f"{PACKAGE}: ", text))


def _short(text: str, limit: int = 45) -> str:
    """As many words of ``text`` as click shows in a list of commands."""
    return click.Command(None, help=text).get_short_help_str(limit)


def _as_typed(match: re.Match[str]) -> str:
    before, program, command = match.groups()
    typed = called(PACKAGE)
    whole = f"{typed} {program}" if program == "sandbox" else typed
    if command is None:
        return whole if before.startswith("python") else match[0]
    known = program == "sandbox" or (command in COMMANDS and COMMANDS[command].program == program)
    return f"{whole} {command}" if known else match[0]


def _reworded(command: click.Command, wording: Callable[[str], str]) -> click.Command:
    """A copy of ``command``, and of all below it, whose help goes through ``wording``."""
    made = copy.copy(command)
    made.help = wording(command.help) if command.help else command.help
    made.epilog = wording(command.epilog) if command.epilog else command.epilog
    made.params = [_reworded_option(one, wording) for one in command.params]
    if isinstance(made, click.Group):
        made.commands = {name: _reworded(one, wording) for name, one in made.commands.items()}
    return made


def _reworded_option(parameter: click.Parameter, wording: Callable[[str], str]) -> click.Parameter:
    if not (isinstance(parameter, click.Option) and parameter.help):
        return parameter
    made = copy.copy(parameter)
    made.help = wording(parameter.help)
    return made


_TARGETS = {name: listed.target for name, listed in COMMANDS.items()}


@click.group(PACKAGE, cls=BrewGroup, later=_TARGETS, epilog=_EPILOG, context_settings=CONTEXT)
def cli() -> None:
    """Exactly once from one Kafka topic to another, on Spark: run it, look at it, repair it, prove it."""


def main() -> NoReturn:
    """The console script."""
    brew.cli.run(cli, PACKAGE)


if __name__ == "__main__":
    main()
