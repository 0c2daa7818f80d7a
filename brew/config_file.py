"""
Where the values of options come from: the command line, else the environment, else brew.toml, else the default.

brew.toml (or the file of `--config`) has a table for each command (`[run]`, `[dlq.replay]`), whose keys are its options
without dashes, and `[common]` for settings of several commands. `[run]` applies to `preflight` and `submit`, too.
Relative paths start at the file's folder. `brew config show` prints where each value comes from.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import orjson
from click.core import ParameterSource

from brew import names
from brew.commands import COMMANDS, LEFT_OUT
from brew.connection import MASK
from brew.errors import UsageError
from brew.names import ExitCode

NAME = "brew.toml"
VARIABLE = "BREW_CONFIG"
COMMON = "common"
# Commands to which another command's table applies, too.
_INHERITED: dict[tuple[str, ...], tuple[str, ...]] = {("preflight",): ("run",), ("submit",): ("run",)}
# Options that destroy or crash something must be typed.
_CRASHES = ("--crash-prob", "--crash-point", "--crash-mode", "--crash-how", "--crash-in")
_TYPED_ONLY = {*_CRASHES, "--abort", "--yes", "--wipe", "--end"}
_PATHS = {"FILE", "DIR"}
# What may be secret in a value, by pattern: the password of a URL, of a PostgreSQL address of the form name=value or of
# a Spark setting, a Spark setting that Spark itself hides (`spark.redaction.regex`), and the query of a web address.
_SECRETS = (
    (re.compile(r"(?<=://)([^:@/]*):.*(?=@)"), rf"\1:{MASK}"),
    (re.compile(r"(?i)(password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s&]+)"), rf"\1{MASK}"),
    (re.compile(r"(?i)\A(spark\.[^=]*(?:secret|password|token|access\.?key)[^=]*=).+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\A(https?://[^?]*\?).+"), rf"\1{MASK}"),
)


class SharedSetting(NamedTuple):
    """A setting that several commands have: its key in `[common]`, and its environment variable."""

    key: str
    variable: str | None


# Keyed by default, whatever a command calls the option: `--topic` of `seed` is the input topic of orders.
_BY_DEFAULT = {
    names.BOOTSTRAP: SharedSetting("bootstrap", "BOOTSTRAP"),
    names.INPUT_TOPIC: SharedSetting("input", "INPUT_TOPIC"),
    names.OUTPUT_TOPIC: SharedSetting("output", "OUTPUT_TOPIC"),
    names.DEAD_LETTER_TOPIC: SharedSetting("dead-letter", "DLQ_TOPIC"),
    names.GROUP_ID: SharedSetting("group", "GROUP_ID"),
    names.CUSTOMERS_TOPIC: SharedSetting("profiles-topic", "PROFILES_TOPIC"),
    names.CLAIMS_TOPIC: SharedSetting("claims", None),
}
_BY_OPTION = {
    "--client-config": SharedSetting("client-config", None),
    "--transform": SharedSetting("transform", "TRANSFORM"),
    "--also-output": SharedSetting("also-output", "ALSO_OUTPUT"),
    "--tiers": SharedSetting("tiers", "TIERS"),
    "--database": SharedSetting("database", "DATABASE_URL"),
    "--redis": SharedSetting("redis", "REDIS_URL"),
    "--jvm-dir": SharedSetting("jvm-dir", None),
}
_COMMON_KEYS = {shared.key for shared in (*_BY_DEFAULT.values(), *_BY_OPTION.values())}

SINGLE_VARIABLES = {
    "count --unique-by": "UNIQUE_BY",
    "doctor --group": "GROUP_ID",
    "receive --store": "STORE",
    "receive --effect-url": "EFFECT_URL",
    "call --url": "CALL_URL",
    "call --virtual-partitions": "VIRTUAL",
    "seed --count": "SEED_COUNT",
    "seed-customers --customers": "CUSTOMERS",
    "topics --partitions": "PARTITIONS",
    "ui --status-url": "STATUS_URL",
    "ui --proof": "PROOF",
    "top --status-url": "STATUS_URL",
    "top --proof": "PROOF",
    "up --brokers": "BROKERS",
}
"""Variables of single options, `command --option`, by the names that make uses."""


class Default(NamedTuple):
    value: Any
    table: str


def shared_setting(option: click.Parameter) -> SharedSetting | None:
    by_default = _BY_DEFAULT.get(option.default) if isinstance(option.default, str) else None
    return by_default or _BY_OPTION.get(option.opts[0])


def variables(option: click.Parameter) -> list[str]:
    given = option.envvar
    return [given] if isinstance(given, str) else list(given or [])


def command_path(ctx: click.Context) -> tuple[str, ...]:
    """Return the words that call the command below `brew`, which are the name of its table."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return ("sandbox", *words) if ctx.command.name == "sandbox" else tuple(words)


def found(named: str | None) -> Path | None:
    """Return the file to use: the named one (`UsageError` if it does not exist), else brew.toml if there is one."""
    if named:
        if not Path(named).exists():
            raise UsageError(f"--config ({VARIABLE}) is {named!r}: there is no such file; name an existing one")
        return Path(named)
    return Path(NAME) if Path(NAME).is_file() else None


def read(file: Path, path: Sequence[str], params: Iterable[click.Parameter]) -> dict[str, Default]:
    """Return the values from ``file``, each with its table; the command's own table wins. Raises `UsageError`."""
    document = parsed(file)
    options = {param.opts[0].removeprefix("--"): param for param in params if isinstance(param, click.Option)}
    common = document.get(COMMON, {})
    taken: dict[str, Default] = {}
    for option in options.values():
        shared = shared_setting(option)
        if shared is not None and shared.key in common:
            taken[str(option.name)] = _taken(file, COMMON, shared.key, common[shared.key], option)
    for table in (_INHERITED.get(tuple(path), ()), tuple(path)):
        name = ".".join(table)
        for key, value in _table(file, document, table).items():
            if key in options:
                taken[str(options[key].name)] = _taken(file, name, key, value, options[key])
            elif table == tuple(path):
                raise _unknown(file, f"[{name}] has no option", key, options)
    return taken


def parsed(file: Path) -> dict[str, Any]:
    """Return the file's tables; raises `UsageError` for an unknown name, an unknown key in `[common]`, or no TOML."""
    try:
        document = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}; make it a file that this user may read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}; correct it") from error
    tables = {COMMON, *COMMANDS, *LEFT_OUT}
    for name, table in document.items():
        if name not in tables:
            raise _unknown(file, "there is no command", name, tables)
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {name} is a value, not a table; write [{name}], and options below it")
    for key in document.get(COMMON, {}):
        if key not in _COMMON_KEYS:
            raise _unknown(file, f"[{COMMON}] has no setting", key, _COMMON_KEYS)
    return document


def _unknown(file: Path, what: str, key: str, known: Iterable[str]) -> UsageError:
    nearest = difflib.get_close_matches(key, sorted(known), 1, 0.0)
    return UsageError(f"{file}: {what} {key!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))


def _table(file: Path, document: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    table: Any = document if path else {}
    for depth, name in enumerate(path, 1):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {'.'.join(path)} is a value, not a table; write [{'.'.join(path)}]")
        stray = [key for key, value in table.items() if depth < len(path) and not isinstance(value, dict)]
        if stray:
            group = ".".join(path[:depth])
            raise UsageError(
                f"{file}: [{group}] has no option {stray[0]!r}; name the command, as in [{'.'.join(path)}]"
            )
    return dict(table)


def _taken(file: Path, table: str, key: str, value: object, option: click.Option) -> Default:
    where = f"{file}: [{table}] {key}"
    if option.opts[0] in _TYPED_ONLY:
        raise UsageError(f"{where} is not allowed: {option.opts[0]} works on the command line only; remove it")
    if isinstance(value, dict) or isinstance(value, list) is not option.multiple:
        raise UsageError(f"{where} = {value!r}; write {'a list of values' if option.multiple else 'one value'}")
    if option.is_flag and not isinstance(value, bool):
        raise UsageError(f"{where} = {value!r}; write true or false")
    typed: Any = value
    if not option.is_flag:
        texts = [_as_typed(where, value, one) for one in (value if isinstance(value, list) else [value])]
        typed = texts if option.multiple else texts[0]
    if (option.metavar or "").partition(".")[0] in _PATHS:  # also FILE.html
        typed = [str(file.parent / one) for one in typed] if option.multiple else str(file.parent / typed)
    try:
        option.type_cast_value(click.Context(click.Command(table)), typed)
    except click.BadParameter as error:
        raise UsageError(f"{where} = {value!r}: {error.message}") from error
    return Default(typed, table)


def _as_typed(where: str, value: object, one: object) -> str:
    """Return a value as on the command line: click would turn a number with a fraction, or true, into an integer."""
    if isinstance(one, bool) or not isinstance(one, str | int | float):
        raise UsageError(f"{where} = {value!r}; write text in quotes, or a number")
    return str(one)


_STEPS = "brew_steps"
Step = Callable[[click.Context, dict[str, Any]], object]
_F = TypeVar("_F", bound=Callable[..., Any])


def with_step(command: _F, step: Step) -> _F:
    """Note what ``command`` does with its options before it works, so that `config show` does it, too."""
    setattr(command, _STEPS, (step, *getattr(command, _STEPS, ())))
    return command


def checked_by(check: Callable[[dict[str, Any]], object]) -> Callable[[_F], _F]:
    """Let `config show` refuse what a command refuses: ``check`` is what the command calls with its options."""
    return lambda command: with_step(command, lambda _context, given: check(given))


class Setting(NamedTuple):
    """An option, the value that a call without options would use, and the origin of the value."""

    option: str
    value: Any
    source: str


@click.group("config")
def config() -> None:
    """
    Show the values of options, from brew.toml and the environment, as the commands use them.

    Example:
      python -m pipeline config show run          values of a run without options
    """


@config.command()
@click.argument("command", nargs=-1)
@click.option("--config", "named", metavar="FILE", envvar=VARIABLE, help="File to use instead of ./brew.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.pass_context
def show(ctx: click.Context, command: tuple[str, ...], named: str | None, *, as_json: bool) -> ExitCode:
    """
    Print each option of COMMAND (default: run) with its value and its source.

    Refuses what COMMAND would refuse, and checks all of brew.toml.

    Examples:
      python -m pipeline config show                   options of `run`
      python -m pipeline config show dlq replay        options of another command
    """
    root = ctx.find_root()
    file = found(named)
    if file is not None:
        _check(file, root)
    settings = _settings(root, command or ("run",), file)
    if as_json:
        options = [setting._asdict() for setting in settings]
        document = {"file": file and str(file), "command": command or ("run",), "options": options}
        click.echo(orjson.dumps(document, default=str).decode())
        return ExitCode.DONE
    click.echo(f"{file.resolve()}" if file else f"no {NAME} in this directory, and no --config")
    wide = max((len(setting.option) for setting in settings), default=0)  # `sandbox archive` has none
    values = [_text(setting.value) for setting in settings]
    column = min(max(map(len, values), default=0), 40)
    for one, value in zip(settings, values, strict=True):
        click.echo(f"  {one.option:<{wide}}  {value:<{column}}  {one.source}".rstrip())
    return ExitCode.DONE


def _settings(root: click.Context, path: tuple[str, ...], file: Path | None) -> list[Setting]:
    """Return a call's options; raises `UsageError` or click's in the command's own words if it refuses them."""
    ctx = _context(root, path)
    options = [param for param in ctx.command.params if isinstance(param, click.Option)]
    taken = read(file, command_path(ctx), options) if file else {}
    ctx.default_map = {name: setting.value for name, setting in taken.items()}
    settings = {option.name: _setting(ctx, option, file, taken) for option in options}
    read_values = {name: None if _is_unset(value) else value for name, value in ctx.params.items()}
    given = dict(read_values)
    for step in getattr(ctx.command.callback, _STEPS, ()):
        step(ctx, given)
    for name, value in given.items():
        if value != read_values[name]:
            settings[name] = settings[name]._replace(value=value, source="named after --output")
    return [settings[option.name] for option in options if not option.hidden]


def _setting(ctx: click.Context, option: click.Option, file: Path | None, taken: dict[str, Default]) -> Setting:
    value, source = option.consume_value(ctx, {})
    if source == ParameterSource.DEFAULT:
        value = option.get_default(ctx)
    with contextlib.suppress(click.MissingParameter):
        option.handle_parse_result(ctx, {}, [])
    value = None if _is_unset(value) else option.type_cast_value(ctx, value)
    return Setting(option.opts[0], _shown(value), _source(option, source, file, taken))


def _is_unset(value: object) -> bool:
    return "Sentinel" in type(value).__name__


def _source(option: click.Option, source: ParameterSource, file: Path | None, taken: dict[str, Default]) -> str:
    if source == ParameterSource.ENVIRONMENT:
        return f"environment, {', '.join(variables(option))}"
    if source == ParameterSource.DEFAULT_MAP:
        return f"{file}, [{taken[str(option.name)].table}]"
    return "default"


def _context(root: click.Context, path: tuple[str, ...]) -> click.Context:
    """As `_called`; also raises `UsageError` if it is a group of commands."""
    ctx = _called(root, path)
    if isinstance(ctx.command, click.Group):
        raise UsageError(f"{' '.join(path)!r} is a group of commands; add the name of one")
    return ctx


def _called(root: click.Context, path: tuple[str, ...]) -> click.Context:
    """Return the context of a call of the command of ``path``; raises `UsageError` if there is no such command."""
    ctx = root
    for name in path:
        group = ctx.command
        below = group.get_command(ctx, name) if isinstance(group, click.Group) else None
        if below is None:
            raise UsageError(f"there is no command {' '.join(path)!r}; see --help for the list")
        ctx = click.Context(below, parent=ctx, info_name=name)
    return ctx


def _check(file: Path, root: click.Context) -> None:
    """Read every table as its command would read it; skip those of other programs' commands."""
    group = root.command
    assert isinstance(group, click.Group)
    for name, table in parsed(file).items():
        if name != COMMON and group.get_command(root, name) is not None:
            for path in _paths(root, (name,), table):
                read(file, path, _context(root, path).command.params)


def _paths(root: click.Context, path: tuple[str, ...], table: object) -> list[tuple[str, ...]]:
    """Return the paths of the commands that have a table in ``table``: one, or those below a group."""
    if isinstance(table, dict) and isinstance(_called(root, path).command, click.Group):
        return [command for key, inner in table.items() for command in _paths(root, (*path, key), inner)]
    return [path]


def _shown(value: Any) -> Any:
    """Return the value for JSON: null if unset, with secrets masked."""
    if isinstance(value, str):
        for pattern, masked in _SECRETS:
            value = pattern.sub(masked, value)
        return value
    return list(map(_shown, value)) if isinstance(value, tuple | list) else value


def _text(value: Any) -> str:
    if value is None or value in ([], ""):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
