"""Keys that are pressed at a terminal, while something waits."""

from __future__ import annotations

import functools
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIT = "q"


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """
    What waits so many seconds, or until a key is pressed: the key, or nothing.

    The terminal is as it was at the end. Without one, or in its background, it only waits.
    """
    if not sys.stdin.isatty() or _in_background(sys.stdin.fileno()):
        yield _pause
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)  # a key counts without Enter; Ctrl-C is a signal as before
    try:
        yield functools.partial(_pressed, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _in_background(terminal: int) -> bool:
    """Whoever changes the terminal from there is stopped by the kernel."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:  # another session's: it has no background for us
        return False


def _pressed(terminal: int, seconds: float) -> str:
    if not select.select([terminal], [], [], seconds)[0]:
        return ""
    return os.read(terminal, 64).decode(errors="replace").lower() or QUIT  # nothing to read: the terminal has gone


def _pause(seconds: float) -> str:
    threading.Event().wait(seconds)
    return ""
