"""`brew config show`: each option's value, and where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson
from click.core import ParameterSource

from brew import config_file
from brew.connection import MASK
from brew.errors import UsageError
from brew.names import ExitCode

_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)")
_OWN = "config"


class Setting(NamedTuple):
    """An option, the value that a call without options would use, and where the value comes from."""

    option: str
    value: Any
    source: str


@click.group(_OWN)
def config() -> None:
    """
    Look at brew.toml and at the variables of the environment, as the commands do.

    \b
    Example:
      python -m pipeline config show run          what a run without options would use
    """  # noqa: D301 - click's own mark


@config.command()
@click.argument("command", nargs=-1)
@click.option("--config", "named", metavar="FILE", envvar=config_file.VARIABLE, help="Not ./brew.toml, this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.pass_context
def show(ctx: click.Context, command: tuple[str, ...], named: str | None, *, as_json: bool) -> ExitCode:
    """
    Print each option of COMMAND (default: run) with its value and where that comes from; check the whole brew.toml.

    \b
    Examples:
      python -m pipeline config show                   of `run`
      python -m pipeline config show dlq replay        of another command
    """  # noqa: D301 - click's own mark
    root = ctx.find_root()
    file = config_file.found(named)
    if file is not None:
        _check(file, root)
    settings = list(_settings(root, command or ("run",), file))
    if as_json:
        document = {"file": str(file) if file else None, "command": list(command or ("run",))}
        click.echo(orjson.dumps(document | {"options": [one._asdict() for one in settings]}, default=str).decode())
        return ExitCode.DONE
    click.echo(f"{file.resolve()}" if file else f"no {config_file.NAME} in this folder, and no --config")
    wide = max(len(one.option) for one in settings)
    values = [_text(one.value) for one in settings]
    column = min(max(map(len, values)), 40)
    for one, value in zip(settings, values, strict=True):
        click.echo(f"  {one.option:<{wide}}  {value:<{column}}  {one.source}".rstrip())
    return ExitCode.DONE


def _settings(root: click.Context, path: tuple[str, ...], file: Path | None) -> Iterator[Setting]:
    ctx = _context(root, path)
    params = ctx.command.params
    read = config_file.read(file, config_file.command_path(ctx), params) if file else {}
    ctx.default_map = {name: one.value for name, one in read.items()}
    for option in params:
        if isinstance(option, click.Option) and not option.hidden:
            value, source = option.consume_value(ctx, {})
            if source == ParameterSource.DEFAULT:
                value = option.get_default(ctx)
            yield Setting(option.opts[0], _shown(value), _source(option, source, file, read))


def _source(
    option: click.Option, source: ParameterSource, file: Path | None, read: dict[str, config_file.Default]
) -> str:
    if source == ParameterSource.ENVIRONMENT:
        return f"environment, {', '.join(config_file.variables(option))}"
    if source == ParameterSource.DEFAULT_MAP:
        return f"{file}, [{read[str(option.name)].table}]"
    return "default"


def _context(root: click.Context, path: tuple[str, ...]) -> click.Context:
    """
    The context that a call of the command of ``path`` would have.

    Raises:
        UsageError: there is no such command.
    """
    ctx = root
    for name in path:
        group = ctx.command
        below = group.get_command(ctx, name) if isinstance(group, click.Group) else None
        if below is None:
            raise UsageError(f"there is no command {' '.join(path)!r}; --help lists them")
        ctx = click.Context(below, parent=ctx, info_name=name)
    if isinstance(ctx.command, click.Group):
        raise UsageError(f"{' '.join(path)!r} is a group; name one of its commands, too")
    return ctx


def _check(file: Path, root: click.Context) -> None:
    """Every table is read as its command would read it; those of other programs' commands are left alone."""
    tables = [(name, table) for name, table in config_file.parsed(file).items() if name != config_file.COMMON]
    for name, table in tables:
        group = root.command
        assert isinstance(group, click.Group)
        below = group.get_command(root, name)
        paths = [(name, key) for key in table] if isinstance(below, click.Group) else [(name,)]
        for path in paths if below is not None else []:
            ctx = _context(root, path)
            config_file.read(file, path, ctx.command.params)


def _shown(value: Any) -> Any:
    """As JSON can have it: unset is null, a password within a URL is masked."""
    if "Sentinel" in type(value).__name__:
        return None
    if isinstance(value, str):
        return _PASSWORD.sub(MASK, value)
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if value is None or value in ([], ""):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
