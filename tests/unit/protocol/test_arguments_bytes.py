"""Arguments that are not UTF-8, as any shell hands them over."""

from __future__ import annotations

import json

import click
import pytest

from brew.cli import as_bytes, as_text, exit_code_of
from brew.errors import Refused
from brew.names import ExitCode


def test_an_argument_keeps_its_bytes_and_has_a_text_to_print() -> None:
    """What Python hands out for a byte that is no UTF-8 can't be encoded the usual way."""
    typed = b"gold-\xff".decode("utf-8", "surrogateescape")
    assert (as_bytes(typed), as_text(typed)) == (b"gold-\xff", "gold-\N{REPLACEMENT CHARACTER}")
    assert (as_bytes("Café"), as_text("Café")) == ("Café".encode(), "Café")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_refusal_that_names_such_an_argument_is_said(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And not replaced by an encoder's "surrogates not allowed"."""

    @click.command()
    @click.argument("what")
    @click.option("--json", "as_json", is_flag=True)
    def command(what: str, *, as_json: bool) -> None:  # noqa: ARG001 - the shape of a command
        raise Refused(f"nothing is called {what}; name something else")

    assert exit_code_of(command, "pipeline", ["gold-\udcff", *more]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    text = json.loads(told)["error"] if more else told
    assert "nothing is called gold-\N{REPLACEMENT CHARACTER}" in text
