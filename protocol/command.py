"""What every command line of the house does alike: errors as one sentence, exit codes, a clean end on SIGTERM."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import orjson

from protocol.errors import BrewError, UsageError
from protocol.names import ExitCode

STOPPED_EXIT = 128 + signal.SIGTERM
REACH_S = 12.0
PACKAGE = "brew"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""click's context settings of every program: `-h` is short for `--help` in all of its commands."""
_JSON = "--json"


class LazyGroup(click.Group):
    """Imports a command when it is asked for: most bring clients that the others have no use for."""

    def __init__(self, *args: Any, later: Mapping[str, str], **settings: Any) -> None:
        """``later``: name -> `module:command`."""
        super().__init__(*args, **settings)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._later])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._later[cmd_name].partition(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found


def as_bytes(argument: str) -> bytes:
    """An argument's bytes as they were typed, which need not be UTF-8."""
    return os.fsencode(argument)


def as_text(argument: str) -> str:
    """An argument that can be printed and written as JSON: bytes that are not UTF-8 show as U+FFFD."""
    return os.fsencode(argument).decode("utf-8", "replace")


class Stopped(BaseException):
    """SIGTERM or SIGINT asked the program to end; no `except Exception` swallows it."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # One is enough: a second one must not interrupt the cleaning up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stopped


def run(command: click.Command, name: str) -> NoReturn:
    """Run a click command as a program; never returns, never shows a stack trace for what is foreseen."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    click.version_option(package_name=PACKAGE, prog_name=PACKAGE, message="%(prog)s %(version)s")(command)
    code = outcome(command, name, sys.argv[1:])
    sys.stdout.flush()
    gc.freeze()  # a program that ends need not look for cycles: 0.15 of 0.2 s after a run with Spark
    sys.exit(code)


def _called(name: str) -> str:
    """What a user types for program ``name``: the console script where pip installed one and it was called."""
    script = Path(sys.argv[0]).name
    return script if script == f"{PACKAGE}-{name}" else f"python -m {name}"


def _refuse(error: str, following: str) -> None:
    """A refusal for programs, on stderr: stdout holds whole answers only. Our errors end with what to do next."""
    click.echo(orjson.dumps({"error": error, "next": following}).decode(), err=True)


def outcome(command: click.Command, name: str, arguments: list[str]) -> int:
    """The exit code of one call: what the command returned, or what its error stands for."""
    try:
        code = command.main(arguments, prog_name=_called(name), standalone_mode=False)
    except Stopped:
        click.echo("stopped", err=True)
        return STOPPED_EXIT
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        if _JSON in arguments:
            _refuse(as_text(error.format_message()), "see --help")
        else:
            error.show()
        return ExitCode.USAGE
    except BrewError as error:
        if _JSON in arguments:
            _refuse(as_text(str(error)), as_text(str(error)).rpartition("; ")[2])
        else:
            click.echo(as_text(f"{name}: {error}"), err=True)
        return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.REFUSED
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; what is left in the buffer has no place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    return int(code or 0)
