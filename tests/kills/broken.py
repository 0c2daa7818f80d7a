"""`python -m tests.kills.broken BUG WORDS...`: `python -m downstream WORDS...` with a bug, for controls."""

from __future__ import annotations

import sys

from brew.cli import run
from downstream.__main__ import downstream
from tests.kills.bugs import BUGS, OTHERS


def main() -> None:
    """Apply the bug and run the program; unknown names raise a `KeyError`."""
    bugs = {name: bug for store in BUGS.values() for name, bug in store.items()} | OTHERS
    bugs[sys.argv.pop(1)]()
    run(downstream, "downstream")


if __name__ == "__main__":
    main()
