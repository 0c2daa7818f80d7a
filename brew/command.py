"""
How every command shows its options: placeholders, environment variables, sections of the help; and brew.toml. A command
with more than 20 options shows only the common ones; `--help-all` shows all.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import click

from brew import config_file
from brew.config_file import SINGLE_VARIABLES, command_path, shared_setting, variables

MOST_SHOWN = 20
"""A command with more options than this shows the advanced ones with `--help-all` only."""

_ALL = "brew.help-all"
_LONGEST_CHOICE = 16
_LEFT = 34

# Placeholders: by option, else by type.
_METAVARS = {
    f"--{option}": placeholder
    for placeholder, words in {
        "HOST:PORT": "bootstrap",
        "TOPIC": "input output dead-letter topic profiles-topic claims",
        "GROUP": "group",
        "NAME": "client-id reader schema",
        "SOURCE": "tiers",
        "FUNCTION": "transform",
        "URL": "master url",
        "FORMAT": "progress",
        "ACTION": "on-missing-position",
        "STEP": "crash-point",
        "WHO": "crash-mode",
        "SHARE": "crash-prob max-rejected loss",
        "CHECK": "allow",
        "HOST": "host probe-host",
        "PORT": "port probe-port",
        "DIR": "journal jvm-dir",
        "FACTOR": "slack",
        "MINUTES": "minutes",
        "DAYS": "keep-days",
        "MS": "jitter-ms latency-ms",
        "KBIT": "rate-kbit",
        "N,N": "seeds",
    }.items()
    for option in words.split()
}
_KINDS = {
    "integer": "N",
    "integer range": "N",
    "float": "SECONDS",
    "float range": "SECONDS",
    "text": "TEXT",
    "path": "FILE",
    "file": "FILE",
    "directory": "DIR",
}


# Section of the help -> its options. Options in no section are the command's own, and come first.
_KAFKA, _WORK, _OUTPUT = "Kafka", "Work", "Output"
_SECTIONS = {
    _KAFKA: "bootstrap client-config input output dead-letter topic group",
    _WORK: "transform master reader follow stand-by share max-rejected allow conf partitions batch",
    _OUTPUT: "progress json verbose journal probe-port",
    "Position": "on-missing-position",
    "Function": "also-output py-files on-error",
    "Tiers": "tiers profiles-topic profiles-timeout",
    "Direct reader": "lease transaction-bytes read-ahead-bytes",
    "Connector": "lanes poll-interval",
    "Several drivers": "claims claim-interval client-id ownership heartbeat-interval-s flow",
    "Limits": "transaction-timeout max-records-per-transaction patience patience-s blocked-patience max-record-bytes "
    "max-record-depth max-poll-interval-s session-timeout-s timeout-s lock-timeout-s statement-timeout-s "
    "idle-timeout-s claim-s most-uncovered attempts back-off-s most-back-off-s keep-days",
    "Probes and traces": "no-probes probe-host polling-ttl consuming-ttl spans",
    "Crashes on purpose": "crash-prob crash-point crash-mode crash-how crash-in crash-seed",
    "Set-up": "jvm-dir",
}
_OWN, _HELP = "Options", "Help"
_SECTION_OF = {f"--{name}": title for title, words in _SECTIONS.items() for name in words.split()}
_ALWAYS = (_OWN, _KAFKA, _WORK, _OUTPUT, _HELP)


class Command(click.Command):
    """A click command that shows its options in sections and reads defaults from brew.toml."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        own = {name for param in self.params for name in param.opts}
        added = [option for option in (_HELP_ALL, _CONFIG) if option.opts[0] not in own]
        return [*params, *added] if ctx.help_option_names else params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = bool(ctx.meta.get(_ALL))
        is_long = sum(isinstance(param, click.Option) and not param.hidden for param in self.params) > MOST_SHOWN
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in (_OWN, *_SECTIONS, _HELP)}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and not option.hidden:
                added = option not in self.params
                title = _HELP if added else _SECTION_OF.get(option.opts[0], _OWN)
                right = _words(option, ctx, short=is_long and not everything)
                if everything and (named := variables(option)):
                    right += f" [{', '.join(named)}]"
                sections[title].append((_left(option, ctx), right))
        for title, rows in sections.items():
            if rows and (everything or not is_long or title in _ALWAYS):
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=_LEFT)


class _FiniteRange(click.FloatRange):
    """A range without `nan`, which no comparison finds outside of it, and without `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


_KEPT = (
    *("name", "callback", "context_settings", "short_help", "options_metavar"),
    *("add_help_option", "no_args_is_help", "hidden", "deprecated"),
)


def dressed(command: click.Command, wording: Callable[[str], str] = str) -> click.Command:
    """Return a copy of ``command`` and its subcommands in the common layout; ``wording`` is applied to help texts."""
    params = [_dressed_parameter(param, command.name or "", wording) for param in command.params]
    text = wording(command.help) if command.help else command.help
    epilog = wording(command.epilog) if command.epilog else command.epilog
    if isinstance(command, click.Group):
        group = copy.copy(command)
        group.params, group.help, group.epilog = params, text, epilog
        group.commands = {name: dressed(subcommand, wording) for name, subcommand in command.commands.items()}
        return group
    kept = {name: getattr(command, name) for name in _KEPT}
    return Command(params=params, help=text, epilog=epilog, **kept)


def _dressed_parameter(parameter: click.Parameter, command: str, wording: Callable[[str], str]) -> click.Parameter:
    if not isinstance(parameter, click.Option):
        return parameter
    made = copy.copy(parameter)
    if isinstance(made.type, click.FloatRange):
        kind = made.type
        made.type = _FiniteRange(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
    made.help = wording(parameter.help) if parameter.help else parameter.help
    if not made.is_flag:
        made.metavar = _METAVARS.get(made.opts[0]) or made.metavar or _KINDS.get(made.type.name)
    if not made.envvar:
        shared = shared_setting(made)
        made.envvar = SINGLE_VARIABLES.get(f"{command} {made.opts[0]}") or (shared.variable if shared else None)
    return made


def _left(option: click.Option, ctx: click.Context) -> str:
    flags = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        flags += f" / {', '.join(option.secondary_opts)}"
    return flags if option.is_flag or option.count else f"{flags} {_placeholder(option, ctx)}"


def _placeholder(option: click.Option, ctx: click.Context) -> str:
    made = option.make_metavar(ctx)
    return "NAME" if isinstance(option.type, click.Choice) and made[0] == "[" and len(made) > _LONGEST_CHOICE else made


def _words(option: click.Option, ctx: click.Context, *, short: bool) -> str:
    """Return the help up to the first semicolon with the default, or all of it, with choices, range and default."""
    text, default = _help(option, ctx)
    if short:
        return _with(text.partition(";")[0], default)
    choices = [str(getattr(choice, "value", choice)) for choice in getattr(option.type, "choices", ())]
    more = []
    if choices and not _placeholder(option, ctx).startswith("[") and not all(choice in text for choice in choices):
        more.append(f"{', '.join(choices[:-1])} or {choices[-1]}")
    return _with(text, [*more, *_limits(option.type), *default])


def _limits(kind: click.ParamType[Any]) -> list[str]:
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return []
    if kind.max is None:
        least = f"{'more than' if kind.min_open else 'at least'} {kind.min:,.12g}"
        return [] if kind.min == 0 and not kind.min_open else [least]
    most = f"{kind.max:,.12g}"
    return [f"at most {most}" if kind.min is None else f"{kind.min:,.12g} to {most}"]


def _help(option: click.Option, ctx: click.Context) -> tuple[str, list[str]]:
    """Return the help without its full stop, and notes on whether it is required and its default."""
    text = option.help or ""
    stated = re.search(r"\s*\[default: ([^\]]+)\]", text)
    default = stated[1] if stated else option.get_help_extra(ctx).get("default")
    text = text.replace(stated[0], "") if stated else text
    needed = ["required"] if option.required else []
    return text.removesuffix("."), needed + ([f"default {default}"] if default else [])


def _with(text: str, more: list[str]) -> str:
    return f"{text} ({'; '.join(more)})" if more else text


def _show_all(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _read_defaults(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """Set the file's defaults; eager, so that other options see them. Command line and environment take precedence."""
    if not ctx.resilient_parsing:
        file = config_file.found(value)
        taken = config_file.read(file, command_path(ctx), ctx.command.params) if file else {}
        ctx.default_map = {name: setting.value for name, setting in taken.items()}


_HELP_ALL: Any = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options, with their environment [VARIABLE], and exit.",
)
_CONFIG: Any = click.Option(
    ["--config"],
    is_eager=True,
    expose_value=False,
    callback=_read_defaults,
    envvar=config_file.VARIABLE,
    metavar="FILE",
    help=f"File of defaults, instead of ./{config_file.NAME}.",
)
