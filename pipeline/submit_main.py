"""What spark-submit runs: the same command line, with the package from --py-files."""

from pipeline.__main__ import main

if __name__ == "__main__":
    main()
