"""`python -m tests.mutants`: the command line of the mutants."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where pytest, too, finds `harness` and `mutants`

from mutants.command import main

main()
