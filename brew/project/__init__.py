"""The command `brew init NAME`: a transformation, a test for it, example records and a Makefile, ready to run."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from string import Template

import click

from brew import names
from brew.cli import named_option
from brew.client_config import checked_bootstrap
from brew.errors import Refused, UsageError
from brew.names import ExitCode

_SUFFIX = ".tmpl"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


@click.command("init")
@click.argument("name")
@named_option("--bootstrap", "BOOTSTRAP", names.BOOTSTRAP, "Bootstrap servers to write into the project's Makefile.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def init(name: str, bootstrap: str, *, as_json: bool) -> ExitCode:
    """
    Create a project: a transformation, a test that needs no Kafka, example records and a Makefile.

    Examples:
      brew init clicks                 then: cd clicks, make test, make seed, make run, make verify
      brew init clicks --bootstrap kafka1:9092
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"NAME is {name!r}, and names a directory, topics and a group; use a letter, then at most 99 letters, "
            "digits, - or _"
        )
    folder = Path(name)
    made = write(folder, {"name": name, "bootstrap": checked_bootstrap(bootstrap)})
    if as_json:
        click.echo(json.dumps({"directory": str(folder.resolve()), "files": made}))
    else:
        click.echo(f"{name}/: {', '.join(made)}\nnext: cd {name} && make test")
    return ExitCode.DONE


def write(folder: Path, values: dict[str, str]) -> list[str]:
    """Write the template's files into the new ``folder``; return their names, or raise `Refused` if it exists."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} already exists and is not empty; choose another name, or remove it")
    found = sorted(file.name for file in resources.files(__package__).iterdir() if file.name.endswith(_SUFFIX))
    try:
        folder.mkdir(exist_ok=True)
        for file in found:
            text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
            (folder / file.removesuffix(_SUFFIX)).write_text(_Text(text).substitute(values), encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"{error.filename} can't be written ({error.strerror}); change to a directory that can"
        ) from error
    return [file.removesuffix(_SUFFIX) for file in found]


class _Text(Template):
    """Uses `@@name` for placeholders, because make uses dollar signs."""

    delimiter = "@@"
