"""The four programs with their commands, modules of scripts/, and files that stand in for programs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from proof.__main__ import proof
from sandbox.__main__ import cli as sandbox

from .pages import ROOT

PROGRAMS: dict[str, click.Group] = {"pipeline": pipeline, "downstream": downstream, "proof": proof, "sandbox": sandbox}


def command_of(program: click.Group, name: str) -> click.Command:
    command = program.get_command(click.Context(program), name)
    assert command is not None
    return command


def all_commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield ``command`` and all that it groups, by the words that call them."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from all_commands(f"{path} {name}", command_of(command, name))


def script(name: str) -> ModuleType:
    """Import a module of scripts/, which is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module(name)


def executable(path: Path, text: str, interpreter: str = sys.executable) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)
    return path
