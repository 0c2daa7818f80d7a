"""`python -m proof`: prepare topics and orders, look at logs and groups, verify the promise."""

from __future__ import annotations

import click

from protocol.command import CONTEXT, LazyGroup, run

COMMANDS = {
    "campaign": "proof.commands.campaign:campaign",
    "claims-member": "proof.commands.claims:claims_member",
    "claims-races": "proof.commands.claims:claims_races",
    "end-offsets": "proof.commands.look:end_offsets",
    "group-describe": "proof.commands.look:group_describe",
    "proxy": "proof.commands.proxy:proxy",
    "read": "proof.commands.read:read",
    "replay": "proof.commands.campaign:replay",
    "report": "proof.commands.report:report",
    "resolve": "proof.commands.prepare:resolve",
    "seed": "proof.commands.prepare:seed",
    "seed-customers": "proof.commands.customers:seed_customers",
    "topics": "proof.commands.prepare:topics",
    "torn": "proof.commands.torn:torn",
    "verify": "proof.commands.verify:verify",
    "wire-cell": "proof.commands.torn:wire_cell",
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
