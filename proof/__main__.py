"""`python -m proof`: prepare topics and orders, look at logs and groups, verify the promise."""

from __future__ import annotations

import click

from proof.commands.campaign import campaign, replay
from proof.commands.claims import claims_races
from proof.commands.look import end_offsets, group_describe
from proof.commands.prepare import resolve, seed, topics
from proof.commands.proxy import proxy
from proof.commands.read import read
from proof.commands.report import report
from proof.commands.torn import torn, wire_cell
from proof.commands.verify import verify
from protocol.command import run


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def proof() -> None:
    """
    Prepare topics and orders, look at logs and groups, verify that every order came out exactly once.

    Exit codes: 0 done or proven, 1 violation found, 3 refused or inconclusive, 64 wrong usage.
    """


for command in (topics, seed, resolve, group_describe, end_offsets, read, verify, campaign, replay, report):
    proof.add_command(command)
for command in (proxy, torn, wire_cell, claims_races):
    proof.add_command(command)


def main() -> None:
    run(proof, "proof")


if __name__ == "__main__":
    main()
