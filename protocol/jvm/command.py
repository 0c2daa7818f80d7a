"""The `setup` command that `pipeline` and `sandbox` share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from protocol.jvm.fetch import fetch
from protocol.jvm.parts import VARIABLE, Part, home, jars

Afterwards = Callable[[Path], None]


def setup_command(
    usual: Part, text: str, afterwards: Afterwards, versions: Mapping[str, Part] | None = None
) -> click.Command:
    """A command that puts ``usual``, or one of ``versions``, in its place, and then does what else belongs there."""

    @click.command("setup", help=text)
    @click.option(
        "--jvm-dir",
        envvar=VARIABLE,
        type=click.Path(path_type=Path, file_okay=False),
        help="Where to put the jars.  [default: a checkout's .jvm, else a folder in the user's cache]",
    )
    @click.option(
        "--from",
        "source",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Take the jars from this folder instead of a Maven repository; their checksums are compared all the same.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
    def command(jvm_dir: Path | None, source: Path | None, kafka: str | None = None, *, as_json: bool) -> None:
        part = versions[kafka] if versions and kafka else usual
        begun = time.monotonic()
        place = home(jvm_dir).absolute()
        if not as_json:
            click.echo(f"jars of {part} into {place / part}", err=True)
        fetched = fetch(part, place, source)
        afterwards(place)
        found = jars(part, place)
        size = sum(jar.stat().st_size for jar in found)
        told = {
            "part": part.value,
            "directory": str(place),
            "jars": [jar.name for jar in found],
            "bytes": size,
            "fetched": fetched,
            "seconds": round(time.monotonic() - begun, 1),
        }
        if as_json:
            click.echo(json.dumps(told, indent=2))
            return
        how = f"fetched and checked in {told['seconds']} s" if fetched else "there already, checked"
        click.echo(f"{len(found)} jars, {size / 1e6:.1f} MB, {how}; {place / part}")

    if versions:
        choice = click.option("--kafka", type=click.Choice(list(versions)), help="Version, for `sandbox up --kafka`.")
        return choice(command)
    return command
