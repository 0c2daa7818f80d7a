"""The rights that the page lists are those that the sandbox grants; every program that finds brokers says who it is."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from harness.pages import ROOT, tables

from brew import acl
from brew.acl import Kind, Operation, ResourceNames, Right
from brew.connection import ALLOWED, CLIENT_CONFIG
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from proof.__main__ import proof

SECURITY = (ROOT / "docs/SECURITY.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
# Brokers that are broken are the campaign's own; those of its F36 cells are secure ones.
_WITHOUT = {"campaign", "replay"}


def test_the_table_of_rights_is_the_one_in_the_code() -> None:
    assert acl.rights_table() in SECURITY


def test_every_setting_that_is_let_through_is_told() -> None:
    told = " ".join(row[0] for row in tables(SECURITY, "One file says who we are")[0])
    assert {name for name in ALLOWED if name not in told.replace("`", "").replace(",", "").split()} == {
        "sasl.mechanisms"
    }


def test_a_place_fills_in_its_names() -> None:
    place = ResourceNames("in", "out", "dead", "g")
    assert [str(right) for right in acl.rights_of("pipeline", place) if right.kind is not Kind.TOPIC] == [
        "Read on group g",
        "Write on transactional-id g:*",
    ]
    assert {right.name for right in acl.rights_of("pipeline", place) if right.kind is Kind.TOPIC} == {
        "in",
        "out",
        "dead",
    }


def test_nobody_but_the_pipeline_may_write() -> None:
    writers = {right.user for right in acl.RIGHTS if right.operation is Operation.WRITE}
    assert writers == {"pipeline"}


def test_a_right_tells_the_command_that_grants_it() -> None:
    right = Right("u", Kind.TRANSACTIONAL_ID, "g:", Operation.WRITE, "", prefix=True)
    assert right.command("User:u") == (
        "kafka-acls --add --allow-principal User:u --operation Write --resource-pattern-type prefixed "
        "--transactional-id g:"
    )


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        elif command is not None:
            yield f"{path} {name}", command


@pytest.mark.parametrize(
    ("group", "name"),
    [(pipeline, "pipeline"), (downstream, "downstream"), (proof, "proof")],
    ids=["pipeline", "downstream", "proof"],
)
def test_every_command_that_is_told_where_brokers_are_is_told_who_it_is(group: click.Group, name: str) -> None:
    found = dict(_commands(group, name))
    assert len(found) > 3
    for path, command in found.items():
        options = {flag: one for one in command.params for flag in one.opts}
        if "--bootstrap" not in options or path.split()[-1] in _WITHOUT:
            continue
        assert "--client-config" in options, f"{path}: use brew.cli beside --bootstrap"
        assert options["--client-config"].envvar == CLIENT_CONFIG


def test_make_hands_the_file_on() -> None:
    assert "$(call option,--client-config,CLIENT_CONFIG)" in MAKEFILE
