"""`python -m proof`: prepare topics and orders, inspect logs and groups, verify the promise."""

from __future__ import annotations

import brew.first_imports  # noqa: F401 - before the slow ones

# isort: split

import click

from brew.cli import CONTEXT, LazyGroup, run

_BY_MODULE = {
    "campaign": ("campaign", "replay", "report"),
    "claims": ("claims-member", "claims-races"),
    "inspect": ("end-offsets", "group-describe", "read", "verify"),
    "seed": ("resolve", "seed", "seed-customers", "topics"),
    "wire": ("proxy", "torn"),
}
COMMANDS = {
    name: f"proof.commands.{module}:{name.replace('-', '_')}" for module, names in _BY_MODULE.items() for name in names
}


@click.group(cls=LazyGroup, later=COMMANDS, context_settings=CONTEXT)
def proof() -> None:
    """
    Create topics, write orders, inspect logs and groups, and verify that every order came out exactly once.

    Examples:
      python -m proof topics                      create the missing topics
      python -m proof seed --count 300            write 300 orders
      python -m proof end-offsets                 count the records of every partition
      python -m proof verify                      check that every order came out exactly once
      python -m proof campaign --list             list the faults that a campaign injects

    Exit codes: 0 done or proven, 1 violation found, 3 refused or inconclusive,
    64 wrong usage.
    """


def main() -> None:
    run(proof, "proof")


if __name__ == "__main__":
    main()
