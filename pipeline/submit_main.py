"""What spark-submit runs: the same command line, with the package from --py-files."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # Python looks in a script's folder first, which would hide a user's `transformation.py`.
        del sys.path[0]
    from pipeline.__main__ import main

    main()
