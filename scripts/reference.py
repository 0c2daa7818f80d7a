"""Write docs/reference/configuration.md from options and Makefile: make reference. A test checks that it is current."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from brew.commands import COMMANDS as BREW
from brew.commands import LEFT_OUT, SECTIONS
from brew.config_file import VARIABLE, variables
from brew.errors import UsageError
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from pipeline.__main__ import settings_of
from proof.__main__ import proof
from sandbox.__main__ import cli as sandbox

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/configuration.md"
PROGRAMS: dict[str, click.Group] = {"pipeline": pipeline, "downstream": downstream, "proof": proof, "sandbox": sandbox}

# Environment variables without a corresponding option.
ENVIRONMENT = {
    "BREW_CLIENT_LOG": "`1`: write the Kafka client's log to stderr, for debugging",
    "JAVA_HOME": "Java of Spark's JVM and of the set-up; if unset, the first `java` on `PATH`",
    "PYSPARK_PYTHON": "Python of the workers; if unset, `local` masters use the driver's own",
    "PYSPARK_DRIVER_PYTHON": "Python of the driver of the spark-submit from pip; if unset, the one of `submit`",
    "XDG_CACHE_HOME": "folder for the jars of an installed package; if unset, `~/.cache`; `BREW_JVM_DIR` comes first",
}
# Makefile variables that are not an option of a program.
MAKE = {
    "CELLS": "cells, rows or marks, separated by spaces",
    "CONTENDERS": "contenders to run, separated by commas",
    "ENGINE": "docker or podman; empty: the first that responds",
    "KEY": "an order's key, or TOPIC/PARTITION/OFFSET",
    "KILLS": "kills per store",
    "MODULE": "areas or modules; empty: all",
    "MUTANTS": "names; empty: all",
    "MUTATION_WORKERS": "number of mutants tested at a time",
    "MUTATION_AGAIN": "only mutants that the last run left alive or did not reach",
    "ORDERS": "backlogs, separated by commas",
    "PAIRED": "`1`: run contenders in pairs, round by round",
    "PROVE_OUT": "folder for results",
    "REPEAT": "number of rounds",
    "RESTARTS": "number of broker restarts; 2 if unset",
    "RESTART_BY": "how the broker is stopped: kill or stop",
    "RESULTS": "result files",
    "STORES": "stores; empty: all",
    "TESTS": "files or folders; empty: all",
    "TEST_WORKERS": "parallel workers; `0`: one test after another in one process",
}
_OWN = {"PY", "SHELL", "MAKEFILE_LIST"}
_HUGE = 1e300

_INTRODUCTION = """# Configuration

Every option of every program. `make reference` generates this page from the programs; a test checks that it is current.

- `python -m pipeline` in a checkout is `brew-pipeline` when installed; likewise `downstream`, `proof` and `sandbox`.
- Order of precedence: option, environment variable, [`brew.toml`](../guide/settings.md), default.
- `make` passes on variables set on its command line or in the environment: `make run-pipeline MASTER=none`.
- A flag's variable enables it with `1`, `true`, `yes` or `on`.
- A repeatable option's variable holds several values, separated by spaces.
- A value outside its limits is refused with exit code 64; the message names value, limit and option.
"""


@dataclass(frozen=True)
class Recipe:
    """The commands of a make target, with macros replaced."""

    target: str
    text: str

    def passed(self) -> dict[str, str]:
        return dict(re.findall(r"\$\(call (?:option|flag),(--[\w-]+),(\w+)\)", self.text))

    def variables(self) -> set[str]:
        return {*self.passed().values(), *re.findall(r"\$\(([A-Z][A-Z_]+)\)", self.text)} - _OWN

    def commands(self) -> set[str]:
        """Return each `program command` that it calls."""
        return {f"{program} {command}" for program, command in re.findall(r"-m (\w+) ([a-z][\w-]*)", self.text)}


def recipes(makefile: str) -> list[Recipe]:
    """Return the documented targets of a Makefile."""
    text = re.sub(r"\\\n\s*", " ", makefile)
    macros = {name: value for name, value in re.findall(r"^([a-z]+) = (.*)$", text, re.MULTILINE) if "$1" not in value}

    def replaced(line: str) -> str:
        while (other := re.sub(r"\$\(([a-z]+)\)", lambda m: macros.get(m[1], ""), line)) != line:
            line = other
        return line

    found = re.findall(r"^([a-z-]+):[^=\n]*##[^\n]*\n((?:\t[^\n]*\n?)+)", text, re.MULTILINE)
    return [Recipe(target, replaced(body)) for target, body in found]


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands below ``group`` with their full names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        elif command is not None and not command.hidden:
            yield f"{path} {name}", command


def run_limits() -> dict[str, str]:
    """Return option -> limits of a run, from the settings' own error messages."""
    found = {}
    run = pipeline.commands["run"]
    given = run.make_context("run", [], resilient_parsing=True).params
    given["tiers"] = "profiles"
    for option in _shown(run):
        if option.type not in {click.INT, click.FLOAT} or option.name is None:
            continue
        several = {"stand_by": option.name == "claim_interval"}
        try:
            settings_of({**given, **several, option.name: _HUGE})
        except UsageError as error:
            if stated := re.search(r"between (\S+) and (\S+)", str(error)):
                found[option.opts[0]] = f"{_plain(stated[1])} to {_plain(stated[2])}"
    return found


def page() -> str:
    made = recipes((ROOT / "Makefile").read_text())
    limits = run_limits()
    by_path = {path: command for name, group in PROGRAMS.items() for path, command in commands(group, name)}
    lines = [_INTRODUCTION, _brew()]
    for name, group in PROGRAMS.items():
        lines.append(f"## {name}\n\n{_first_line(group)}\n")
        for path, command in by_path.items():
            if path.split()[0] == name:
                lines.append(_section(path, command, by_path, made, limits))
    lines += [_environment(by_path), _make_variables(made)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _long_name(name: str) -> str:
    """Return the words after `python -m` that call the same command as `brew NAME`."""
    program = BREW[name].program
    return program if name == program else f"{program} {name}"


def _brew() -> str:
    """Describe the console command `brew`: which program's command each of its commands is."""
    rows = [
        [section, ", ".join(f"`brew {name}`" for name in commands), ", ".join(f"`{_long_name(n)}`" for n in commands)]
        for section, commands in SECTIONS.items()
    ]
    rows += [["not in `brew`", "", ", ".join(f"`{program} {name}`" for name, (program, _) in LEFT_OUT.items())]]
    head = "## brew\n\nOne command for all four programs; the sections below list options, variables and defaults.\n"
    return head + "\n" + _table(["section", "command", "the same as `python -m ...`"], rows)


def _section(
    path: str, command: click.Command, by_path: dict[str, click.Command], made: list[Recipe], limits: dict[str, str]
) -> str:
    options = list(_shown(command))
    run = {option.opts[0] for option in _shown(by_path["pipeline run"])}
    head = f"### {path}\n\n{_first_line(command)}\n"
    if path != "pipeline run" and run - {"--progress"} <= {option.opts[0] for option in options}:
        options = [option for option in options if option.opts[0] not in run]
        head += "\nTakes the options of `pipeline run`, and these:\n"
    if arguments := [param for param in command.params if isinstance(param, click.Argument)]:
        head += f"\nArguments: {', '.join(f'`{part.make_metavar(click.Context(command))}`' for part in arguments)}\n"
    if not options:
        return head
    passed = _passed(path, made)
    rows = [
        [
            ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts)),
            _kind(option, limits if path.startswith("pipeline ") else {}),
            _default(option),
            _code(variables(option)),
            _code(passed.get(option.opts[0], [])),
            _text(option.help or ""),
        ]
        for option in options
    ]
    return head + "\n" + _table(["option", "value", "default", "environment", "make", "what it is"], rows)


def _passed(path: str, made: list[Recipe]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for recipe in made:
        if path in recipe.commands():
            for option, variable in recipe.passed().items():
                found.setdefault(option, set()).add(variable)
    return {option: sorted(variables) for option, variables in found.items()}


def _environment(by_path: dict[str, click.Command]) -> str:
    users: dict[str, dict[str, set[str]]] = {}
    for path, command in by_path.items():
        for option in _shown(command):
            for variable in variables(option):
                users.setdefault(variable, {}).setdefault(option.opts[0], set()).add(path.split()[0])
    texts = {
        name: "; ".join(f"{_code([option])} of {', '.join(sorted(by))}" for option, by in sorted(options.items()))
        for name, options in users.items()
    }
    texts[VARIABLE] = "`--config` of every command"
    rows = [[f"`{name}`", text] for name, text in {**texts, **ENVIRONMENT}.items()]
    return "## Environment\n\n" + _table(["variable", "what it is"], sorted(rows))


def _make_variables(made: list[Recipe]) -> str:
    rows = []
    for name in sorted({variable for recipe in made for variable in recipe.variables()}):
        users = [recipe for recipe in made if name in recipe.variables()]
        options = sorted(
            {option for recipe in users for option, variable in recipe.passed().items() if variable == name}
        )
        targets = ", ".join(f"`make {recipe.target}`" for recipe in users)
        rows.append([f"`{name}`", MAKE.get(name) or _code(options), targets])
    return "## Make variables\n\n" + _table(["variable", "option, or what it is", "targets"], rows)


def _shown(command: click.Command) -> Iterator[click.Option]:
    return (param for param in command.params if isinstance(param, click.Option) and not param.hidden)


def _kind(option: click.Option, limits: dict[str, str]) -> str:
    kind = option.type
    if option.is_flag:
        words = "flag"
    elif isinstance(kind, click.Choice):
        words = " ".join(f"`{choice}`" for choice in kind.choices)
    elif isinstance(kind, click.IntRange | click.FloatRange):
        words = f"{'integer' if isinstance(kind, click.IntRange) else 'number'}, {_range(kind)}"
    else:
        words = {"integer": "integer", "float": "number", "path": "path", "directory": "path"}.get(kind.name, "text")
        if option.opts[0] in limits:
            words += f", {limits[option.opts[0]]}"
    words += ", required" if option.required else ""
    return words + (", repeatable" if option.multiple else "")


def _range(kind: click.IntRange | click.FloatRange) -> str:
    least = None if kind.min is None else f"{'more than ' if kind.min_open else ''}{_plain(kind.min)}"
    most = None if kind.max is None else f"{'less than ' if kind.max_open else ''}{_plain(kind.max)}"
    if least is None:
        return f"at most {most}"
    if most is None:
        return least if kind.min_open else f"{least} or more"
    return f"{least} to {most}"


def _default(option: click.Option) -> str:
    stated = re.search(r"\[default: ([^\]]+)\]", option.help or "")
    value = option.default
    if option.is_flag or option.multiple or callable(value) or value is None or "Sentinel" in type(value).__name__:
        return stated[1] if stated else ""
    value = getattr(value, "value", value)
    return f"`{_plain(value)}`" if value != "" else stated[1] if stated else ""


def _first_line(command: click.Command) -> str:
    text = (command.help or "").strip().partition("\n\n")[0]
    return _text(" ".join(text.split()))


def _plain(value: object) -> str:
    """Format a number with all its digits."""
    try:
        number = float(str(value))
    except ValueError:
        return str(value)
    return f"{number:.12g}"


def _code(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def _text(words: str) -> str:
    words = re.sub(r"\s*\[default: [^\]]+\]", "", words)
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell or " " for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} written\n")
