"""
What every command line shares: exit codes, one-line errors, `--client-config`.

Where the brokers say no, the program that has the option ends with who lacks what, and what to do.
"""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import click
import orjson

from brew import names
from brew.acl import WRITTEN, advice
from brew.client_config import ClientConfig, load
from brew.command import dressed
from brew.connection import CLIENT_CONFIG, Connection
from brew.errors import BrewError, Denied, UsageError
from brew.names import ExitCode
from brew.records import MARKS_TOPIC, REPLAY_GROUP
from brew.signals import Stopped, check_stopped, end_at_once, handlers_kept, raise_on_signals

STOPPED_EXIT = 128 + signal.SIGTERM
_INTERRUPTED_EXIT = 128 + signal.SIGINT
REACH_S = 12.0
PACKAGE = "brew"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""click's context settings of every program: `-h` is short for `--help` in all of its commands."""
_JSON = "--json"


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Put several options on a click command, in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(decorators), command)


option = functools.partial(click.option, show_default=True)
"""`click.option` whose default stands in the help."""


class LazyGroup(click.Group):
    """Imports a command when it is asked for: most bring clients that the others have no use for."""

    def __init__(self, *args: Any, later: Mapping[str, str] | None = None, **settings: Any) -> None:
        """``later``: name -> `module:command`."""
        super().__init__(*args, **settings)
        self._later = later or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._later])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if cmd_name in self._later:
            module, _, name = self._later[cmd_name].partition(":")
            found = getattr(importlib.import_module(module), name)
        return None if found is None else dressed(found, self.as_called)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, with each command's whole first sentence."""
        with formatter.section("Commands"):
            commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(200))
                    for name, command in commands
                    if command and not command.hidden
                ]
            )

    def as_called(self, text: str) -> str:
        """``text``, which may name commands, in the words by which this program's user calls them."""
        return text


def as_called(text: str) -> str:
    """``text`` of the running command, with commands named as its user calls them: `brew lag` below `brew`."""
    context = click.get_current_context(silent=True)
    return text if context is None else _wording(context.find_root().command)(text)


def _wording(program: click.Command) -> Callable[[str], str]:
    return program.as_called if isinstance(program, LazyGroup) else str


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
    code = exit_code_of(command, name, sys.argv[1:])
    end_at_once(code)
    sys.stdout.flush()
    gc.freeze()  # a program that ends need not look for cycles: 0.15 of 0.2 s after a run with Spark
    sys.exit(code)


class _Stderr(logging.Handler):
    """
    Write what the library logs to stderr, as plain sentences.

    Lines of librdkafka stay out: what matters of them comes back as an error.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("brew.librdkafka"):
            click.echo(self.format(record), err=True)


def _log_to_stderr() -> None:
    logger = logging.getLogger("brew")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.setLevel(logging.INFO)
        logger.addHandler(_Stderr())


def called(name: str) -> str:
    """What a user types for program ``name``: the console script where pip installed one and it was called."""
    script = PACKAGE if name == PACKAGE else f"{PACKAGE}-{name}"
    return script if Path(sys.argv[0]).name == script else f"python -m {name}"


def _refuse(error: str, following: str) -> None:
    """A refusal for programs, on stderr: stdout holds whole answers only. Our errors end with what to do next."""
    click.echo(orjson.dumps({"error": error, "next": following}).decode(), err=True)


def _aborted(error: click.Abort, name: str) -> int:
    """A SIGINT that somebody else's handler took (`KeyboardInterrupt`), or a question whose answer did not come."""
    interrupted = isinstance(error.__cause__, KeyboardInterrupt)
    why = "stopped by SIGINT" if interrupted else "a question got no answer; see --help for the option that gives it"
    click.echo(f"{name}: {why}", err=True)
    return _INTERRUPTED_EXIT if interrupted else ExitCode.REFUSED


def _stopped(error: Stopped | SystemError, name: str) -> int:
    """A signal's exception; raised inside a call of a client library, it is the cause of another one."""
    stopped = error if isinstance(error, Stopped) else error.__cause__
    if not isinstance(stopped, Stopped):
        raise error
    if stopped.code:
        click.echo(f"{name}: {stopped}", err=True)
    return stopped.code


@handlers_kept()
def exit_code_of(command: click.Command, name: str, arguments: list[str]) -> int:
    """The exit code of one call: what the command returned, or what its error stands for."""
    _log_to_stderr()
    try:
        code = int(command.main(arguments, prog_name=called(name), standalone_mode=False) or 0)
        check_stopped(code)
    except (Stopped, SystemError) as error:
        return _stopped(error, name)
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
        text = as_text(_wording(command)(str(error)))
        if _JSON in arguments:
            _refuse(text, text.rpartition("; ")[2])
        else:
            click.echo(f"{name}: {text}", err=True)
        return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.REFUSED
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; what is left in the buffer has no place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    return code


_F = TypeVar("_F", bound=Callable[..., Any])
_META = "brew.client-config"


def _loaded(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        context.meta[_META] = load(value)


_option = click.option(
    "--client-config",
    envvar=CLIENT_CONFIG,
    type=click.Path(path_type=Path),
    callback=_loaded,
    expose_value=False,
    metavar="FILE",
    help="User, password, certificates (docs/SECURITY.md).",
)
# What commands write that is not a pipeline's output or dead letters.
_WRITES = {
    "call": ("{dead_letter}",),
    "replay": ("{input}", "{dead_letter}" + MARKS_TOPIC),
    "totals": ("{output}", "{group}.deltas", "{group}.changelog"),
}
# Commands that never move a position.
_LOOKS = {"lag", "explain", "show", "doctor", "xray", "ui", "top", "list", "inspect"}
# A command's parameters that name topics, and a group.
_TOPICS = ("input", "output", "also_output", "dead_letter", "topic", "topics", "claims", "profiles_topic")


def client_config_option(command: _F) -> _F:
    """Stands beside every `--bootstrap`; `connection` finds what it loaded."""

    @functools.wraps(command)
    def guarded(*args: Any, **given: Any) -> Any:
        try:
            return command(*args, **given)
        except (UsageError, Denied):
            raise
        except BrewError as error:
            context = click.get_current_context(silent=True)
            given_names = _asks_for(context) if context else {}
            read_only = context is not None and _is_read_only(context)
            hint = advice(str(error), connection("").user, given_names, client_config().source, read_only=read_only)
            if hint is None:
                raise
            raise Denied(f"{error}; {hint}") from error

    return _option(cast(_F, guarded))


def _asks_for(context: click.Context) -> dict[str, str]:
    """The names that a command works with, by role; some it makes out of those that it is given."""
    found = _names(context.params)
    fields = {role: found.get(role, "") for role in ("input", "output", "dead_letter", "group")}
    command = context.info_name or ""
    for number, name in enumerate(_WRITES.get(command, ())):
        found[f"{WRITTEN}{number}"] = name.format_map(fields)
    return found | ({"group": f"{fields['group']}{REPLAY_GROUP}"} if command == "replay" else {})


def _is_read_only(context: click.Context) -> bool:
    """Whether the command never moves a group's position; `proof` has no other ones, whichever program calls them."""
    module = getattr(context.command.callback, "__module__", "")
    return module.partition(".")[0] == "proof" or context.info_name in _LOOKS


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role in _TOPICS:
        value = given.get(role)
        for number, name in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(name, str):
                found[f"{role}{number or ''}"] = name
    return found | ({"group": given["group"]} if isinstance(given.get("group"), str) else {})


def with_client_config(option: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """``option`` and `--client-config` behind it, as one decorator."""

    def both(command: _F) -> _F:
        return option(client_config_option(command))

    return both


def named_option(flags: str, env: str, default: str, text: str, **more: Any) -> Callable[[Any], Any]:
    """An option with a default and a variable of the environment; ``flags`` may name the parameter behind a space."""
    return click.option(*flags.split(), envvar=env, default=default, show_default=True, help=text, **more)


bootstrap_option = with_client_config(
    named_option("--bootstrap", "BOOTSTRAP", names.BOOTSTRAP, "Brokers to ask first.", metavar="HOST:PORT")
)


def client_config() -> ClientConfig:
    """What the running command was given; empty without a file, or outside of a command."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(_META)
    return found if isinstance(found, ClientConfig) else ClientConfig()


def connection(bootstrap: str) -> Connection:
    """The connection of the running command: its `--bootstrap`, as whom its `--client-config` says."""
    config = client_config()
    return Connection(bootstrap, config.properties, config.secrets, config.source)


def forget_variables() -> None:
    """Take the secrets that came from the environment out of it, before JVMs and workers inherit them."""
    for name in client_config().variables:
        os.environ.pop(name, None)
