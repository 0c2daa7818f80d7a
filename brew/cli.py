"""What all command lines share: exit codes, one-line errors (a denied access names the right), `--client-config`."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import gc
import importlib
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar, cast

import click
import orjson
from click.core import ParameterSource

from brew import names, signals
from brew.acl import WRITTEN, advice
from brew.client_config import ClientConfig, checked_bootstrap, load
from brew.command import dressed
from brew.config_file import with_step
from brew.connection import CLIENT_CONFIG, Connection
from brew.errors import BrewError, Denied, Refused, UsageError
from brew.names import ExitCode
from brew.records import MARKS_TOPIC, REPLAY_GROUP
from brew.signals import Stopped, check_stopped, end_at_once, handlers_kept, raise_on_signals

STOPPED_EXIT = 128 + signal.SIGTERM
_INTERRUPTED_EXIT = 128 + signal.SIGINT
REACH_S = 12.0
_THREAD_BEGINS_S = 5.0
PACKAGE = "brew"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""click's context settings of every program: `-h` is short for `--help` in all commands."""
_JSON = "--json"
_ESCAPED = "brew-escaped"
_KEPT = "\n\t"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(decorators), command)


option = functools.partial(click.option, show_default=True)
"""`click.option` that shows the default in the help."""


def typed_option(flags: str, kind: Any, default: object, text: str, **more: Any) -> Callable[[Any], Any]:
    """Return an option with a type and a default; ``flags`` may end with the parameter's name."""
    return option(*flags.split(), type=kind, default=default, help=text, **more)


def plain_option(flags: str, text: str, metavar: str | None = None, **more: Any) -> Callable[[Any], Any]:
    """Return an option without a default, or whose help does not show it."""
    return click.option(*flags.split(), help=text, metavar=metavar, **more)


flag = functools.partial(plain_option, is_flag=True)
repeatable = functools.partial(plain_option, multiple=True)


def checked_group(_context: click.Context, _parameter: click.Parameter, group: str | None) -> str | None:
    return None if group is None else names.checked_group(group, "--group")


def group_option(default: str, text: str) -> Callable[[Any], Any]:
    return option("--group", default=default, callback=checked_group, metavar="NAME", help=text)


class LazyGroup(click.Group):
    """Imports a command only when it is needed, because most import clients that the others do not need."""

    def __init__(self, *args: Any, later: Mapping[str, str] | None = None, **settings: Any) -> None:
        """Add commands to import later; ``later``: name -> `module:command`."""
        super().__init__(*args, **settings)
        self.help = _keeping_lines(self.help or "")
        self._later = later or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._later])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if cmd_name in self._later:
            module, _, name = self._later[cmd_name].partition(":")
            found = getattr(importlib.import_module(module), name)
        return None if found is None else dressed(found, lambda text: _keeping_lines(self.as_called(text)))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands as click does, but with each one's whole first sentence."""
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
        """Return ``text`` with commands named as this program's user calls them."""
        return text


def as_called(text: str) -> str:
    """Return ``text`` with commands named as the running command's user calls them: `brew lag` for `brew`."""
    context = click.get_current_context(silent=True)
    return text if context is None else _wording(context.find_root().command)(text)


def _wording(program: click.Command) -> Callable[[str], str]:
    return program.as_called if isinstance(program, LazyGroup) else str


def _keeping_lines(text: str) -> str:
    """Return a help text with click's mark for "keep these lines" before the paragraphs that need it."""
    return re.sub(r"\n\n( *)(?=Examples?:|Exit codes:)", "\n\n\\1\b\n\\1", text)


def as_bytes(argument: str) -> bytes:
    """Return an argument's bytes as typed, which need not be UTF-8."""
    return os.fsencode(argument)


def as_text(argument: str) -> str:
    """Return an argument that can be printed and written as JSON; bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(argument).decode("utf-8", "replace")


def printable(text: str, kept: str = "") -> str:
    """Return a record's text for a terminal, with characters escaped that are invisible or control it, but ``kept``."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def run(command: click.Command, name: str) -> NoReturn:
    """Run a click command as a program; never returns, and prints no stack trace for expected errors."""
    _prepare_streams()
    raise_on_signals()
    click.version_option(package_name=PACKAGE, prog_name=PACKAGE, message="%(prog)s %(version)s")(command)
    code = exit_code_of(command, name, sys.argv[1:])
    end_at_once(code)
    sys.stdout.flush()
    gc.freeze()  # no need to look for cycles at exit: saves 0.15 of 0.2 s after a run with Spark
    sys.exit(code)


def _prepare_streams() -> None:
    """Make standard streams usable that the caller closed (`>&-`), or whose encoding lacks most characters."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # This also takes the free descriptor, which a connection would get otherwise, with what others print.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - stays open
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        codecs.register_error(_ESCAPED, _escaped)
        sys.stdout.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Return the characters that can't be encoded as `\u25cf`, which is also valid in a string of JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)), error.end


class _Stderr(logging.Handler):
    """Writes the library's log to stderr, without librdkafka's lines: those that matter are also raised as errors."""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("brew.librdkafka"):
            _say(self.format(record))


def _log_to_stderr() -> None:
    logger = logging.getLogger("brew")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.setLevel(logging.INFO)
        logger.addHandler(_Stderr())


def called(name: str) -> str:
    """Return what a user types for program ``name``: the console script if it was called, else `python` with it."""
    if name.endswith(".py"):
        return f"python {name}"
    script = PACKAGE if name == PACKAGE else f"{PACKAGE}-{name}"
    return script if Path(sys.argv[0]).name == script else f"python -m {name}"


def _say(text: str) -> None:
    """Print to stderr; without a reader, or room, the exit code alone has to tell."""
    with _without_reader():
        click.echo(text, err=True)


@contextlib.contextmanager
def _without_reader() -> Iterator[None]:
    try:
        yield
    except OSError:
        # Else the exit code of Python's own failed flush, 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _refuse(error: str, following: str) -> None:
    """Print an error as JSON on stderr, because stdout holds only whole answers; ``following`` is what to do next."""
    _say(orjson.dumps({"error": error, "next": following}).decode())


def _last_clause(text: str) -> str:
    """Return what follows the last semicolon that is not in parentheses: by convention, what to do next."""
    begins = [
        found.end()
        for found in re.finditer("; ", text)
        if text.count("(", 0, found.end()) == text.count(")", 0, found.end())
    ]
    return text[begins[-1] if begins else 0 :]


def _aborted(error: click.Abort, name: str) -> int:
    """Report a SIGINT that another handler took (`KeyboardInterrupt`), or a prompt without an answer."""
    interrupted = isinstance(error.__cause__, KeyboardInterrupt)
    why = "stopped by SIGINT" if interrupted else "no answer to a question; see --help for the option that answers it"
    _say(f"{name}: {why}")
    return _INTERRUPTED_EXIT if interrupted else ExitCode.REFUSED


def _stopped(error: Stopped | Exception, name: str) -> int:
    """Handle a signal's exception; within a client library's call or a class body, it becomes another one."""
    state = signals._signal_state  # noqa: SLF001 - as in `_let_signal_thread_begin`
    cause = error if isinstance(error, Stopped) else error.__cause__
    if isinstance(cause, Stopped):
        stopped = cause
    elif state is not None and state.raising and state.number is not None:
        stopped = state.stopped(state.number)
    else:
        raise error
    if stopped.code:
        _say(f"{name}: {stopped}")
    return stopped.code


def _refused(error: BrewError, command: click.Command, name: str, *, as_json: bool) -> int:
    text = as_text(_wording(command)(str(error)))
    if as_json:
        _refuse(text, _last_clause(text))
    else:
        _say(f"{name}: {printable(text, _KEPT)}")  # it may quote what a record holds
    return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.REFUSED


def _code_of(command: click.Command, name: str, arguments: list[str]) -> int:
    """Call the command; a path or an output that the system refuses is the user's to correct, and `Refused`."""
    stdout = sys.stdout
    try:
        return int(command.main(arguments, prog_name=called(name), standalone_mode=False) or 0)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            if error.errno not in _NO_ROOM:
                raise
            with contextlib.suppress(OSError):
                stdout.flush()
            _discard(stdout)
            raise Refused(
                f"the output could not be written ({error.strerror}), though what the command does may be done; free "
                "space where its output goes, or send it elsewhere"
            ) from error
        raise Refused(
            f"{error.filename}: {error.strerror}; name a path that exists, and that this user may read and write"
        ) from error


@handlers_kept()
def exit_code_of(command: click.Command, name: str, arguments: list[str]) -> int:
    """Return the exit code of one call: what the command returned, or the code for its error."""
    _log_to_stderr()
    stdout = sys.stdout
    try:
        code = _code_of(command, name, arguments)
        check_stopped(code)
    except Stopped as error:
        return _stopped(error, name)
    except click.Abort as error:
        return _aborted(error, name)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        if _JSON in arguments:
            _refuse(as_text(error.format_message()), "see --help")
        else:
            with _without_reader():
                error.show()
        return ExitCode.USAGE
    except BrewError as error:
        return _refused(error, command, name, as_json=_JSON in arguments)
    except (BrokenPipeError, SystemExit) as error:
        # click replaces stdout and exits with 1, rich exits with 1: our code for a violation.
        gone = not isinstance(error, SystemExit) or isinstance(error.__context__, BrokenPipeError)
        if not gone and sys.stdout is stdout:
            raise
        return _reader_gone(stdout, error, name)
    except Exception as error:  # noqa: BLE001 - raised again unless a signal is behind it
        return _stopped(error, name)
    finally:
        _let_signal_thread_begin()
    return code


class UnfinishedError(BrokenPipeError):
    """Raised by a command that stopped before its work was done, because the reader of its output is gone."""


def _let_signal_thread_begin() -> None:
    """Wait until the thread that a signal started runs: Python 3.11 crashes if it ends before (exit code 139)."""
    state = signals._signal_state  # noqa: SLF001 - here, because the kernel's hash has the text of brew.signals
    if state is not None and state.number is not None and state._stop is not None:  # noqa: SLF001
        state._stop.wait(_THREAD_BEGINS_S)  # noqa: SLF001


def _discard(stdout: TextIO) -> None:
    """Discard what is left in the buffer, which would fail again at the exit."""
    sys.stdout = stdout
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def _reader_gone(stdout: TextIO, error: BaseException, name: str) -> int:
    """Return the exit code if the reader of our output (`| head`) is gone."""
    _discard(stdout)
    if not isinstance(error, UnfinishedError):
        return ExitCode.DONE
    _say(f"{name}: {error}")
    return ExitCode.REFUSED


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
    help="File with security settings (docs/SECURITY.md).",
)
# Topics that commands write besides a pipeline's output and dead letters.
_WRITES = {
    "call": ("{dead_letter}",),
    "replay": ("{input}", "{dead_letter}" + MARKS_TOPIC),
    "totals": ("{output}", "{group}.deltas", "{group}.changelog"),
}
# Commands that never move a position.
_LOOKS = {"lag", "explain", "show", "doctor", "xray", "ui", "top", "list", "inspect"}
# Names of the parameters that are topics.
_TOPICS = ("input", "output", "also_output", "dead_letter", "topic", "topics", "claims", "profiles_topic")


def client_config_option(command: _F) -> _F:
    """Add `--client-config`, which belongs to every `--bootstrap`; `connection` returns what it loaded."""

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
    """Return the names that a command works with, by role; some are derived from its parameters."""
    found: dict[str, str] = {}
    for role in _TOPICS:
        value = context.params.get(role)
        for number, name in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(name, str):
                found[f"{role}{number or ''}"] = name
    if isinstance(group := context.params.get("group"), str):
        found["group"] = group
    fields = {role: found.get(role, "") for role in ("input", "output", "dead_letter", "group")}
    command = context.info_name or ""
    for number, name in enumerate(_WRITES.get(command, ())):
        found[f"{WRITTEN}{number}"] = name.format_map(fields)
    return found | ({"group": f"{fields['group']}{REPLAY_GROUP}"} if command == "replay" else {})


def _is_read_only(context: click.Context) -> bool:
    """Return whether the command never moves a group's position, as no command of `proof` does."""
    module = getattr(context.command.callback, "__module__", "")
    return module.partition(".")[0] == "proof" or context.info_name in _LOOKS


def named_option(flags: str, env: str, default: str, text: str, **more: Any) -> Callable[[Any], Any]:
    """Return an option with a default and an environment variable; ``flags`` may end with the parameter's name."""
    return option(*flags.split(), envvar=env, default=default, help=text, **more)


bootstrap_option = options(
    named_option(
        "--bootstrap",
        "BOOTSTRAP",
        names.BOOTSTRAP,
        "Bootstrap servers; several separated by commas.",
        metavar="HOST:PORT",
        callback=lambda _context, _parameter, servers: checked_bootstrap(servers),
    ),
    client_config_option,
)


def names_by_output(command: _F) -> _F:
    """
    With `--transform`, name group and dead-letter topic after the output topic where they are not given. The defaults
    are those of the orders: another function would share their committed offsets. `brew.Pipeline` has the same rule.
    """

    @functools.wraps(command)
    def named(*args: Any, **given: Any) -> Any:
        _name_by_output(click.get_current_context(), given)
        return command(*args, **given)

    return with_step(cast(_F, named), _name_by_output)


def _name_by_output(context: click.Context, given: dict[str, Any]) -> None:
    if given.get("transform"):
        output = given["output"]
        for name, made in (("group", f"brew-{output}"), ("dead_letter", f"{output}.dlq")):
            if context.get_parameter_source(name) is ParameterSource.DEFAULT:
                given[name] = context.params[name] = made


def client_config() -> ClientConfig:
    """Return what the running command was given; empty without a file, or outside of a command."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(_META)
    return found if isinstance(found, ClientConfig) else ClientConfig()


def connection(bootstrap: str) -> Connection:
    """Return the running command's connection to ``bootstrap``, with the user of its `--client-config`."""
    config = client_config()
    return Connection(bootstrap, config.properties, config.secrets, config.source)


def forget_variables() -> None:
    """Remove secrets from the environment once they are read, before JVMs and workers inherit them."""
    for name in client_config().variables:
        os.environ.pop(name, None)
