"""Keys of the live view on the terminal: one made here, which nobody else reads."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from ui_views import PollResults, flow, look, seen, strip, tails

from operations.ui import terminal
from operations.ui.terminal import keys


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a terminal at which keys are pressed; the other one is stdin."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


def test_a_key_counts_without_enter_and_the_terminal_is_left_as_it_was(keyboard: int) -> None:
    """A shell that gets its terminal back without lines or echo is of no use."""
    before = termios.tcgetattr(sys.stdin.fileno())
    with keys() as pressed:
        assert pressed(0.01) == ""
        os.write(keyboard, b"Q")
        assert pressed(20) == "q"
        assert termios.tcgetattr(sys.stdin.fileno()) != before
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_q_ends_the_view_and_no_other_key_does(keyboard: int) -> None:
    view, snapshots = seen(PollResults(flow(look(0, 5, 10)), tails(strip(0)))), []

    class Desk:
        def view(self) -> Any:
            snapshots.append(1)
            os.write(keyboard, b"x" if len(snapshots) < 3 else b"q")
            return view

    watching = threading.Thread(
        target=terminal._watch, args=[Desk(), Console(file=io.StringIO(), width=100, height=30), 60.0], daemon=True
    )
    watching.start()
    watching.join(30)
    assert (watching.is_alive(), len(snapshots)) == (False, 3)


def test_without_a_terminal_it_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`brew top < /dev/null` draws, and ends by a signal."""
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keys() as pressed:
            assert pressed(0.01) == ""
