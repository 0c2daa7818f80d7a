"""The console command `brew`: every command of the four programs, listed without being imported."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from harness.commands import PROGRAMS, all_commands, command_of
from harness.pages import PACKAGES, ROOT

import brew
from brew import errors
from brew.__main__ import COMMANDS, LEFT_OUT, SECTIONS, BrewGroup, cli
from brew.cli import CONTEXT, LazyGroup, _is_read_only, as_called, exit_code_of
from brew.errors import Refused
from sandbox.__main__ import cli as sandbox

LISTED = [name for name in PROGRAMS if name != "sandbox"]
CLIENTS = ("confluent_kafka", "kafka", "pyspark", "psycopg", "redis", "rocksdict", "pyarrow", "pandas", "starlette")
APPLICATIONS = PACKAGES[1:]


@pytest.fixture(autouse=True)
def _typed_as_brew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip's console script starts it."""
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/brew"])


def _python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Which commands there are.


@pytest.mark.parametrize("name", LISTED)
def test_every_command_of_a_program_is_reachable_or_left_out_with_a_reason(name: str) -> None:
    """It is the program's own command: the same callback, whatever its help is worded like."""
    program = PROGRAMS[name]
    own = set(program.list_commands(click.Context(program)))
    reachable = {command for command, listed in COMMANDS.items() if listed.program == name}
    left_out = {command for command, (whose, why) in LEFT_OUT.items() if whose == name and why}
    assert (reachable | left_out, reachable & left_out) == (own, set())
    assert all(command_of(cli, command).callback is command_of(program, command).callback for command in reachable)


def test_the_sandbox_is_a_group_and_the_only_name_that_it_shares_is_resolved_on_purpose() -> None:
    """`setup`: Spark's jars at the top level, a broker below `sandbox`."""
    group = command_of(cli, "sandbox")
    assert isinstance(group, click.Group)
    assert [path for path, _ in all_commands("sandbox", group)] == [
        path for path, _ in all_commands("sandbox", sandbox)
    ]
    names = {name: {*program.list_commands(click.Context(program))} for name, program in PROGRAMS.items()}
    shared = {one for name, own in names.items() for other in names if other != name for one in own & names[other]}
    assert shared == {"setup"}
    assert COMMANDS["setup"].program == "pipeline"
    assert group.commands["setup"].callback is sandbox.commands["setup"].callback


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_in_one_line_of_80_columns(name: str) -> None:
    text = cli.get_help(click.Context(cli, info_name="brew", terminal_width=80, **CONTEXT))
    line = next(line for line in text.splitlines() if line.startswith(f"  {name} "))
    assert line.endswith(COMMANDS[name].help)
    assert COMMANDS[name].help.endswith(".")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_command_that_is_left_out_is_told_where_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(cli, "brew", [name, "--help"]) == 64
    assert f"`python -m {LEFT_OUT[name][0]} {name}`" in capsys.readouterr().err


def test_every_program_that_runs_on_takes_follow_from_the_same_variable() -> None:
    """`FOLLOW=1`, as the page of variables says; `show` only prints."""
    following = {
        command: option.envvar
        for command, listed in COMMANDS.items()
        if listed.program in {"pipeline", "downstream"} and command != "show"
        for option in command_of(PROGRAMS[listed.program], command).params
        if option.name == "follow"
    }
    assert following == dict.fromkeys(("run", "submit", "preflight", "ledger", "receive", "totals", "call"), "FOLLOW")


# What it says.


def test_help_lists_every_command_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(cli, "brew", ["-h"]) == 0
    output = capsys.readouterr().out
    places = [output.index(f"\n{section}:\n") for section in SECTIONS]
    assert places == sorted(places)
    assert [name for name in COMMANDS if f"\n  {name} " not in output] == []
    assert "_BREW_COMPLETE=bash_source brew" in output
    assert "Usage: brew [OPTIONS] COMMAND" in output
    assert cli.context_settings is CONTEXT


def test_no_help_names_another_program_for_what_brew_can_do() -> None:
    """Examples and options of every command, at every level; a command that `brew` has not keeps its own name."""
    helps = {
        path: command.get_help(click.Context(command, info_name=path)) for path, command in all_commands("brew", cli)
    }
    others = tuple(f"{before}{name} " for before in ("python -m ", "`") for name in PROGRAMS)
    assert [(path, other) for path, text in helps.items() for other in others if other in text] == []
    assert "  brew lag --watch" in helps["brew lag"]
    assert "  brew sandbox up --brokers 3" in helps["brew sandbox"]
    assert "  brew dlq replay" in helps["brew dlq"]
    # What `brew` shows are copies: the programs keep their own names.
    assert "python -m pipeline lag --watch" in str(command_of(PROGRAMS["pipeline"], "lag").help)
    assert "python -m sandbox up" in str(sandbox.commands["up"].help)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `pipeline doctor`", "see `brew doctor`"),
        ("see `brew doctor`", "see `brew doctor`"),
        ("`python -m downstream claims status` shows whose", "`brew claims status` shows whose"),
        ("`brew-sandbox setup --kafka 3.9.2` fetches it", "`brew sandbox setup --kafka 3.9.2` fetches it"),
        ("`python -m proof replay CELL SEED`", "`python -m proof replay CELL SEED`"),
        ("application brew-pipeline, group brew-enricher", "application brew-pipeline, group brew-enricher"),
        ("pipeline: warning: x", "brew: warning: x"),
        ("the pipeline run", "the pipeline run"),
    ],
)
def test_a_message_names_what_the_user_typed(text: str, expected: str) -> None:
    assert cli.as_called(text) == expected


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_one_line_that_names_brew(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    """Raised by a command, on stderr, as text or for programs; text that is echoed goes the same way."""

    @click.command("lag")
    @click.option("--json", "_json", is_flag=True)
    def lag(*, _json: bool) -> None:
        click.echo(as_called("`pipeline top`"))
        raise Refused("it is held; `pipeline doctor` tells by whom")

    program = BrewGroup("brew", later={}, commands={"lag": lag})
    code = exit_code_of(program, "brew", ["lag", *(["--json"] if as_json else [])])
    output = capsys.readouterr()
    assert (code, output.out) == (3, "`brew top`\n")
    assert "`brew doctor` tells by whom" in output.err
    assert output.err.startswith('{"error"' if as_json else "brew: it is held")
    assert output.err.count("\n") == 1


def test_a_check_asks_for_the_rights_of_one_who_only_looks() -> None:
    """Advice about missing rights goes by whose command it is, not by the program that the user typed."""

    def read_only(name: str) -> bool:
        brew = click.Context(cli, info_name="brew")
        return _is_read_only(click.Context(command_of(cli, name), info_name=name, parent=brew))

    commands = {"verify": True, "end-offsets": True, "lag": True, "call": False, "run": False}
    assert {name: read_only(name) for name in commands} == commands


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--lanes", "x"], 64, "Try 'brew run --help'"),
        (["run", "--lanes", "0"], 64, "brew: --lanes is 0"),
        (["lagg"], 64, "No such command 'lagg'"),
        (["sandbox", "logs", "--dir", "nowhere"], 3, "`brew sandbox status` shows"),
    ],
)
def test_exit_codes_are_those_of_the_programs(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(cli, "brew", arguments) == code
    assert message in capsys.readouterr().err


def test_the_module_is_named_where_no_console_script_was_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m brew`: what the lines show can be typed again."""
    monkeypatch.setattr(sys, "argv", ["/src/brew/__main__.py"])
    assert exit_code_of(cli, "brew", ["lag", "-h"]) == 0
    output = capsys.readouterr().out
    assert "Usage: python -m brew lag " in output
    assert "  python -m brew lag --watch" in output


def test_usage_names_a_script_by_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(click.Command("bench"), "benchmarks/claims.py", ["--help"]) == 0
    assert "Usage: python benchmarks/claims.py [OPTIONS]" in capsys.readouterr().out


def test_a_program_without_other_names_says_what_it_said() -> None:
    assert as_called("`pipeline lag`") == "`pipeline lag`"
    assert LazyGroup("pipeline", later={}).as_called("`pipeline lag`") == "`pipeline lag`"


# What it loads.

_LOADED = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
_COMPLETE = "import sys; sys.argv[:] = ['brew']\nfrom brew.__main__ import cli\nfrom brew.cli import exit_code_of\n"


@pytest.mark.parametrize(
    "code",
    [
        "import brew; brew.__version__; brew.Refused",
        f"{_COMPLETE}exit_code_of(cli, 'brew', ['--help'])",
        f"{_COMPLETE}exit_code_of(cli, 'brew', ['--version'])",
    ],
    ids=["library", "help", "version"],
)
def test_no_client_and_no_application_is_loaded_for(code: str) -> None:
    loaded = _python(f"{code}\n{_LOADED}").splitlines()[-1].split()
    assert "brew" in loaded
    assert [name for name in (*CLIENTS, *APPLICATIONS) if name in loaded] == []


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        *(("brew la", ["lag"]), ("brew see", ["seed", "seed-customers"])),
        *(("brew ", list(COMMANDS)), ("brew --he", ["--help"])),
    ],
)
def test_commands_are_completed_without_being_loaded(typed: str, completed: list[str]) -> None:
    """Each press of the tab key starts the program once."""
    words = {"_BREW_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": "1"}
    ended = f"try: exit_code_of(cli, 'brew', [])\nexcept SystemExit: pass\n{_LOADED}"
    *lines, loaded = _python(_COMPLETE + ended, **words).splitlines()
    assert lines == [f"plain,{name}" for name in completed]
    assert [name for name in (*CLIENTS, *APPLICATIONS) if name in loaded.split()] == []


def test_what_is_below_a_command_is_completed() -> None:
    words = {"_BREW_COMPLETE": "bash_complete", "COMP_WORDS": "brew sandbox st", "COMP_CWORD": "2"}
    assert _python(f"{_COMPLETE}exit_code_of(cli, 'brew', [])", **words) == ("plain,status\nplain,stores\n")


# The library's public face.


def test_the_librarys_public_face_is_its_errors_its_version_and_nothing_that_it_has_not() -> None:
    assert 6 <= len(brew.__all__) <= 10
    public = {name: getattr(brew, name) for name in brew.__all__}
    assert all(one.__doc__ for one in public.values())
    assert {*brew.__all__, "formats", "testing"} <= {*dir(brew)}, "completion in a notebook"
    raised = {n: one for n, one in public.items() if isinstance(one, type) and issubclass(one, Exception)}
    for name, error in raised.items():
        if error is brew.Reject:  # what a transformation raises is no error of ours
            continue
        assert error is getattr(errors, name)
        assert issubclass(error, brew.BrewError)
    assert brew.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="module 'brew' has no attribute 'nothing'"):
        _ = brew.nothing  # type: ignore[attr-defined]
