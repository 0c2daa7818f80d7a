"""The console command `brew`, or `python -m brew`: the commands of all four programs, each imported when called."""

from __future__ import annotations

import brew.first_imports

# isort: split

import re
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

import brew.cli
from brew.cli import CONTEXT, PACKAGE, LazyGroup, called
from brew.commands import COMMANDS, LEFT_OUT, SECTIONS

_EPILOG = """\b
Examples:
  brew sandbox up                one Kafka broker on localhost:9092
  brew topics                    make the topics that are missing
  brew seed --count 300          write orders to work on
  brew run                       drain them and exit
  brew lag                       show the lag of each partition
  brew verify                    prove that every order came out exactly once
  brew lag --help                options and examples of a command

\b
Completion of commands and options (also zsh_source, fish_source):
  eval "$(_BREW_COMPLETE=bash_source brew)"

\b
Exit codes: 0 done or proven, 1 violation found, 2 crashed on purpose,
  3 refused or inconclusive, 64 wrong usage."""

_PROGRAMS = "pipeline|downstream|proof|sandbox"
# A program named in a text, with its command: `python -m proof verify`, `brew-sandbox up`, `brew lag`.
_NAMED = re.compile(rf"(python -m |brew-|(?<=`))({_PROGRAMS})\b(?![-\w])(?: ([a-z][a-z-]*))?")
_PREFIX = re.compile(rf"\A(?:{_PROGRAMS}): ")


class BrewGroup(LazyGroup):
    """Lists the commands in sections without importing them; when called, a command's texts name `brew`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in LEFT_OUT and not ctx.resilient_parsing:
            program, why = LEFT_OUT[args[0]]
            ctx.fail(f"No such command {args[0]!r}: {why}. It is called with `python -m {program} {args[0]}`.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the sections, without importing the commands."""
        column = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(column), command.help) for name, command in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete as click does, but without importing the commands."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name].help) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def as_called(self, text: str) -> str:
        """Return ``text`` with commands of the four programs named as commands of `brew`; others stay unchanged."""
        return _NAMED.sub(_as_typed, _PREFIX.sub(f"{PACKAGE}: ", text))


def _as_typed(match: re.Match[str]) -> str:
    before, program, command = match.groups()
    typed = called(PACKAGE)
    whole = f"{typed} {program}" if program == "sandbox" else typed
    if command is None:
        return whole if before.startswith("python") else match[0]
    known = program == "sandbox" or (command in COMMANDS and program in (PACKAGE, COMMANDS[command].program))
    return f"{whole} {command}" if known else match[0]


_TARGETS = {name: listed.target for name, listed in COMMANDS.items()}


@click.group(PACKAGE, cls=BrewGroup, later=_TARGETS, epilog=_EPILOG, context_settings=CONTEXT)
def cli() -> None:
    """Exactly once from one Kafka topic to another, on Spark: run it, look at it, repair it, prove it."""


def main() -> NoReturn:
    brew.cli.run(cli, PACKAGE)


if __name__ == "__main__":
    main()
