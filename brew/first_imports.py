"""
Imported first: Ctrl-C while its other modules are imported ends the process quietly, with 130. Python's own handler
ends an import with a stack trace, or in a crash of the extension that is being imported. `brew.cli.run` installs the
handlers for the rest of the program. In another program's process, nothing changes.
"""

from __future__ import annotations

import os
import signal
import sys

_PROGRAMS = {"brew", "pipeline", "downstream", "proof", "sandbox"}


def _is_ours() -> bool:
    """Return whether this process runs one of our console scripts, or one of our packages with `python -m`."""
    folder, name = os.path.split((sys.argv or [""])[0])
    if name == "-m":  # until the package has been imported
        words = sys.orig_argv
        return "-m" in words[:-1] and words[words.index("-m") + 1] in _PROGRAMS
    if name == "__main__.py":
        return os.path.basename(folder) in _PROGRAMS  # noqa: PTH119 - pathlib takes longer to import
    return name == "brew" or (name.startswith("brew-") and name.removeprefix("brew-") in _PROGRAMS)


if _is_ours() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
