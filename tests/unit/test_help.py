"""Whoever asks a command for help gets it: each option told, each command shown at work."""

from __future__ import annotations

import re

import click
import pytest
from harness.commands import PROGRAMS, all_commands, command_of

from brew.cli import CONTEXT, exit_code_of
from brew.command import MOST_SHOWN, Command
from brew.names import ExitCode
from proof.seed import orders

COMMANDS = {path: command for name, group in PROGRAMS.items() for path, command in all_commands(name, group)}


def _unexplained(command: click.Command) -> list[str]:
    return [one.opts[0] for one in command.params if isinstance(one, click.Option) and not (one.help or one.hidden)]


def _shown(path: str, command: click.Command) -> list[list[str]]:
    """The words behind ``path`` in each example that calls it; remarks stand three spaces behind."""
    text = command.get_help(click.Context(command, info_name=path))
    calls = re.findall(r"^ *(?:\w+=\S+ )*(?:python -m |brew-)(.*?)(?: {3,}.*)?$", text, re.MULTILINE)
    name = path.split()
    return [words[len(name) :] for call in calls if (words := call.split())[: len(name)] == name]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_a_command_is_explained_and_every_command_shows_a_call_that_it_takes(path: str) -> None:
    """A flag's name alone tells neither unit nor meaning; a group shows a call of one of its commands."""
    assert _unexplained(COMMANDS[path]) == []
    examples = _shown(path, COMMANDS[path])
    assert examples
    for words in examples:
        command = COMMANDS[path]
        while isinstance(command, click.Group):
            command = command_of(command, words.pop(0))
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

    assert _unexplained(bare) == ["--untold"]
    assert _shown("it bare", bare) == []
    assert _shown("it bare-bones", bare) == [["--told", "x"]]


def test_examples_name_orders_that_the_seeder_makes() -> None:
    make = orders(1)
    helps = {path: command.get_help(click.Context(command, info_name=path)) for path, command in COMMANDS.items()}
    order = re.compile(r"\b(?:gold|silver|bronze|standard)-\d{6}\b")
    named = [(path, key) for path, text in helps.items() for key in order.findall(text)]
    assert named
    assert [one for one in named if make(int(one[1][-6:]))[0].decode() != one[1]] == []


def test_an_example_in_cluster_mode_names_a_master_that_has_it() -> None:
    """spark-submit refuses cluster mode with local[*], the default."""
    lines = (COMMANDS["pipeline submit"].epilog or "").splitlines()
    examples = [line for line in lines if "deployMode=cluster" in line]
    assert examples
    assert all("MASTER=yarn" in line for line in examples)


def test_h_is_short_for_help_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands inherit it from their program, as click hands the settings down; a fresh one shows that it is taken."""
    for path, command in COMMANDS.items():
        own = command.context_settings
        if path in PROGRAMS:
            assert own is CONTEXT
        else:
            assert own.get("help_option_names", []) == [], path  # those that hand their words on take no help at all

    @click.group(context_settings=CONTEXT)
    def program() -> None:
        """Do something."""

    @program.command()
    def part() -> None:
        """Do a part of it."""

    assert exit_code_of(program, "pipeline", ["part", "-h"]) == 0
    assert "-h, --help" in capsys.readouterr().out


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


@pytest.mark.parametrize("path", ["pipeline run", "pipeline submit", "pipeline preflight"])
def test_a_runs_help_shows_twenty_options_at_most_in_a_line_each(path: str) -> None:
    """On 80 columns; nothing is cut, and --help-all has the others."""
    command = COMMANDS[path]
    text = command.get_help(click.Context(command, info_name=path, terminal_width=80, **CONTEXT))
    rows = text[text.index("Kafka:") : text.index("Help:")].splitlines()
    assert [row for row in rows if row.startswith("   ")] == []
    assert len([row for row in rows if row.startswith("  --")]) <= MOST_SHOWN
    assert [row for row in text.splitlines() if len(row) > 80 or "..." in row] == []
    assert "--help-all" in text


@pytest.mark.parametrize("path", [path for path, one in COMMANDS.items() if isinstance(one, Command)])
def test_help_all_has_every_option_with_its_variable(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[path]
    if command.context_settings.get("ignore_unknown_options"):
        return  # it hands its words on to another program
    name, *words = path.split()
    assert exit_code_of(PROGRAMS[name], name, [*words, "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in _options(command):
        assert f"{option.opts[0]} " in text
        assert not option.envvar or f"[{option.envvar}]" in text


def test_a_readers_section_has_only_what_the_other_reader_ignores(capsys: pytest.CaptureFixture[str]) -> None:
    """`--max-records-per-transaction` limits the direct reader's transactions, too."""
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", ["run", "--help-all"]) == 0
    output = capsys.readouterr().out
    sections = {title: re.findall(r"^  (--\S+)", body, re.MULTILINE) for title, body in _sections(output)}
    assert sections["Connector"] == ["--lanes", "--poll-interval"]
    assert sections["Direct reader"] == ["--lease", "--transaction-bytes", "--read-ahead-bytes"]
    assert "--max-records-per-transaction" in sections["Limits"]


def _sections(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^(\w[\w -]*):\n((?:  .*\n)+)", text, re.MULTILINE)


# Options of one name that stand for different things: numbers or topics, offsets or times, files or folders.
_DIFFERENT = {"--customers", "--from", "--offset", "--out", "--partitions"}


def test_one_thing_has_one_placeholder() -> None:
    metavars: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in _options(command):
            if not option.is_flag and not isinstance(option.type, click.Choice):
                metavars.setdefault(option.opts[0], set()).add(option.make_metavar(click.Context(command)))
    assert {name for name, kinds in metavars.items() if len(kinds) > 1} == _DIFFERENT
    assert [name for name, kinds in metavars.items() if kinds & {"INTEGER", "FLOAT", "INTEGER RANGE", "STRING"}] == []


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("words", [["lag", "--fail-older-than"], ["lag", "--interval"], ["doctor", "--older-than"]])
def test_a_limit_has_to_be_finite(words: list[str], number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No age is above `nan`: with it, lag and doctor would exit with 0 whatever they found."""
    code = exit_code_of(PROGRAMS["pipeline"], "pipeline", [*words, number, "--bootstrap", "127.0.0.1:1"])
    assert code == ExitCode.USAGE
    assert words[1] in capsys.readouterr().err
