"""`python -m proof`: prepare topics and orders, inspect logs and groups, verify the promise."""

from __future__ import annotations

import click

from brew.cli import CONTEXT, LazyGroup, run

COMMANDS = {
    "campaign": "proof.commands.campaign:campaign",
    "claims-member": "proof.commands.claims:claims_member",
    "claims-races": "proof.commands.claims:claims_races",
    "end-offsets": "proof.commands.inspect:end_offsets",
    "group-describe": "proof.commands.inspect:group_describe",
    "proxy": "proof.commands.wire:proxy",
    "read": "proof.commands.inspect:read",
    "replay": "proof.commands.campaign:replay",
    "report": "proof.commands.campaign:report",
    "resolve": "proof.commands.seed:resolve",
    "seed": "proof.commands.seed:seed",
    "seed-customers": "proof.commands.seed:seed_customers",
    "topics": "proof.commands.seed:topics",
    "torn": "proof.commands.wire:torn",
    "verify": "proof.commands.inspect:verify",
    "wire-cell": "proof.commands.wire:wire_cell",
}


@click.group(cls=LazyGroup, later=COMMANDS, context_settings=CONTEXT)
def proof() -> None:
    """
    Create topics, write orders, inspect logs and groups, and verify that every order came out exactly once.

    \b
    Examples:
      python -m proof topics                      create the missing topics
      python -m proof seed --count 300            write 300 orders
      python -m proof end-offsets                 count the records of every partition
      python -m proof verify                      check that every order came out exactly once
      python -m proof campaign --list             list the faults that a campaign injects

    Exit codes: 0 done or proven, 1 violation found, 3 refused or inconclusive, 64 wrong usage.
    """  # noqa: D301 - click's own mark


def main() -> None:
    run(proof, "proof")


if __name__ == "__main__":
    main()
