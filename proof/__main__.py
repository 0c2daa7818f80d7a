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
    Prepare topics and orders, look at logs and groups, verify that every order came out exactly once.

    \b
    Examples:
      python -m proof topics                      make the topics that are missing
      python -m proof seed --count 300            orders to work on
      python -m proof end-offsets                 what lies in every partition
      python -m proof verify                      every visible order exactly once, or why not
      python -m proof campaign --list             what can be broken on purpose

    Exit codes: 0 done or proven, 1 violation found, 3 refused or inconclusive, 64 wrong usage.
    """  # noqa: D301 - click's own mark


def main() -> None:
    run(proof, "proof")


if __name__ == "__main__":
    main()
