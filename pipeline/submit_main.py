"""What spark-submit is given to run: the same command line, with the package from --py-files."""

import sys
from pathlib import Path

# Python puts a script's folder first on its path: our `numbers.py` would stand for the standard library's there.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [place for place in sys.path if Path(place).resolve() != _HERE]

from pipeline.__main__ import main  # noqa: E402 - see above

if __name__ == "__main__":
    main()
