"""What every command line of the house does alike: errors as one sentence, exit codes, a clean end on SIGTERM."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
import orjson

from protocol.errors import BrewError, UsageError
from protocol.names import ExitCode
from protocol.stopping import Stopped, check_stopped, end_at_once, handlers_kept, raise_on_signals

STOPPED_EXIT = 128 + signal.SIGTERM
_INTERRUPTED_EXIT = 128 + signal.SIGINT
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


def run(command: click.Command, name: str) -> NoReturn:
    """Run a click command as a program; never returns, never shows a stack trace for what is foreseen."""
    raise_on_signals()
    click.version_option(package_name=PACKAGE, prog_name=PACKAGE, message="%(prog)s %(version)s")(command)
    code = outcome(command, name, sys.argv[1:])
    end_at_once(code)
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


def _aborted(error: click.Abort, name: str) -> int:
    """A SIGINT that somebody else's handler took (`KeyboardInterrupt`), or a question whose answer did not come."""
    interrupted = isinstance(error.__cause__, KeyboardInterrupt)
    why = "stopped by SIGINT" if interrupted else "a question got no answer; see --help for the option that gives it"
    click.echo(f"{name}: {why}", err=True)
    return _INTERRUPTED_EXIT if interrupted else ExitCode.REFUSED


@handlers_kept()
def outcome(command: click.Command, name: str, arguments: list[str]) -> int:
    """The exit code of one call: what the command returned, or what its error stands for."""
    try:
        code = int(command.main(arguments, prog_name=_called(name), standalone_mode=False) or 0)
        check_stopped(code)
    except Stopped as stopped:
        if stopped.code:
            click.echo(f"{name}: {stopped}", err=True)
        return stopped.code
    except click.Abort as error:
        return _aborted(error, name)
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
    return code
