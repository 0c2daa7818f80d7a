"""Whoever asks a command for help gets it: each option told, each command shown at work."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from brew.cli import CONTEXT, exit_code_of
from brew.command import MOST_SHOWN, Command
from brew.names import ExitCode
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from proof.__main__ import proof
from proof.seed import orders
from sandbox.__main__ import cli as sandbox

PROGRAMS: dict[str, click.Group] = {"pipeline": pipeline, "downstream": downstream, "proof": proof, "sandbox": sandbox}


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """``command`` and all that it groups, by the words that call them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _below(f"{path} {name}", found)


def _untold(command: click.Command) -> list[str]:
    """Options without a word."""
    return [one.opts[0] for one in command.params if isinstance(one, click.Option) and not (one.help or one.hidden)]


def _shown(path: str, command: click.Command) -> list[list[str]]:
    """The words behind ``path`` in each example that calls it; remarks stand three spaces behind."""
    told = command.get_help(click.Context(command, info_name=path))
    calls = re.findall(r"^ *(?:\w+=\S+ )*(?:python -m |brew-)(.*?)(?: {3,}.*)?$", told, re.MULTILINE)
    name = path.split()
    return [words[len(name) :] for call in calls if (words := call.split())[: len(name)] == name]


COMMANDS = {path: command for name, group in PROGRAMS.items() for path, command in _below(name, group)}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_a_command_says_what_it_is(path: str) -> None:
    """A flag's name alone tells neither unit nor meaning."""
    assert _untold(COMMANDS[path]) == []


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_shows_a_call_of_itself(path: str) -> None:
    """And of a group: a call of one of its commands."""
    assert _shown(path, COMMANDS[path])


@pytest.mark.parametrize("path", COMMANDS)
def test_the_options_of_every_example_are_there(path: str) -> None:
    """An example that is refused is worse than none."""
    for words in _shown(path, COMMANDS[path]):
        command = COMMANDS[path]
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None
            command = found
        if command.context_settings.get("ignore_unknown_options"):
            continue  # it hands its words on to another program
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def test_what_is_not_told_is_seen() -> None:
    """The checks themselves: an option without help, a command that shows a call of another one only."""

    @click.command()
    @click.option("--told", help="With words.")
    @click.option("--untold")
    def bare(told: str, untold: str) -> None:
        """
        Say nothing of how to call it.

        \b
        Example:
          python -m it bare-bones --told x
        """  # noqa: D301 - click's own mark

    assert _untold(bare) == ["--untold"]
    assert _shown("it bare", bare) == []
    assert _shown("it bare-bones", bare) == [["--told", "x"]]


def test_examples_name_orders_that_the_seeder_makes() -> None:
    """An example that is typed as it stands finds a record, whatever the seed."""
    make = orders(1)
    told = [
        (path, key)
        for name, program in PROGRAMS.items()
        for path, command in _below(name, program)
        for text in (command.get_help(click.Context(command, info_name=path)),)
        for key in re.findall(r"\b(?:gold|silver|bronze|standard)-\d{6}\b", text)
    ]
    assert told
    assert [one for one in told if make(int(one[1][-6:]))[0].decode() != one[1]] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_h_is_short_for_help_in_every_command(name: str) -> None:
    """Commands inherit it from their program; `outcome` of a fresh one shows that it is taken."""
    assert PROGRAMS[name].context_settings is CONTEXT
    for path, command in _below(name, PROGRAMS[name]):
        own = {} if command is PROGRAMS[name] else command.context_settings
        assert own.get("help_option_names", []) == [], path  # those that hand their words on take no help at all


def test_h_is_taken_by_a_command_below_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    """As click hands the settings down."""

    @click.group(context_settings=CONTEXT)
    def program() -> None:
        """Do something."""

    @program.command()
    def below() -> None:
        """Do a part of it."""

    assert exit_code_of(program, "pipeline", ["below", "-h"]) == 0
    assert "-h, --help" in capsys.readouterr().out


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


@pytest.mark.parametrize("path", ["pipeline run", "pipeline submit", "pipeline preflight"])
def test_a_runs_help_shows_twenty_options_at_most_in_a_line_each(path: str) -> None:
    """On 80 columns; nothing is cut, and --help-all has the others."""
    command = COMMANDS[path]
    told = command.get_help(click.Context(command, info_name=path, terminal_width=80, **CONTEXT))
    rows = told[told.index("Kafka:") : told.index("Help:")].splitlines()
    assert [row for row in rows if row.startswith("   ")] == []
    assert len([row for row in rows if row.startswith("  --")]) <= MOST_SHOWN
    assert [row for row in told.splitlines() if len(row) > 80 or "..." in row] == []
    assert "--help-all" in told


@pytest.mark.parametrize("path", [path for path, one in COMMANDS.items() if isinstance(one, Command)])
def test_help_all_has_every_option_with_its_variable(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And --help names those that are not advanced, in sections."""
    command = COMMANDS[path]
    if command.context_settings.get("ignore_unknown_options"):
        return  # it hands its words on to another program
    name, *words = path.split()
    assert exit_code_of(PROGRAMS[name], name, [*words, "--help-all"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for option in _options(command):
        assert f"{option.opts[0]} " in told
        assert not option.envvar or f"[{option.envvar}]" in told


# Options of one name that stand for different things: numbers or topics, offsets or times, files or folders.
_DIFFERENT = {"--customers", "--from", "--offset", "--out", "--partitions"}


def test_one_thing_has_one_placeholder() -> None:
    """An option of one name takes one kind of value in every command, and says it in one word."""
    found: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in _options(command):
            if not option.is_flag and not isinstance(option.type, click.Choice):
                found.setdefault(option.opts[0], set()).add(option.make_metavar(click.Context(command)))
    assert {name for name, kinds in found.items() if len(kinds) > 1} == _DIFFERENT
    assert [name for name, kinds in found.items() if kinds & {"INTEGER", "FLOAT", "INTEGER RANGE", "STRING"}] == []


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("words", [["lag", "--fail-older-than"], ["lag", "--interval"], ["doctor", "--older-than"]])
def test_a_limit_that_is_not_a_finite_number_is_refused(
    words: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No age is above `nan`: with it, lag and doctor would exit with 0 whatever they found."""
    assert exit_code_of(pipeline, "pipeline", [*words, number, "--bootstrap", "127.0.0.1:1"]) == ExitCode.USAGE
    assert words[1] in capsys.readouterr().err
