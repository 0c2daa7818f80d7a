"""What all command lines share: signals and how a program ends, arguments that are not UTF-8."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import click
import pytest

from brew.cli import STOPPED_EXIT, as_bytes, as_text, checked_group, exit_code_of
from brew.errors import Refused, UsageError
from brew.names import ExitCode
from brew.signals import Stopped, stop_on_signals

_DEADLINE_S = 20.0

# A main thread holds its event's lock for microseconds at a time, so a signal seldom falls into them: held here.
_STOP = """
import signal, sys, threading
from brew.signals import SAME_REQUEST_S, stop_on_signals
stop = threading.Event()
stop_on_signals(stop, *map(float, sys.argv[2:]))
"""
_IN_THE_MIDST = """
with stop._cond:
    signal.raise_signal(int(sys.argv[1]))
sys.exit(0 if stop.wait(10) else 3)
"""
_DEAF = """
signal.raise_signal(signal.SIGTERM)
if len(sys.argv) == 2:
    threading.Event().wait(2 * SAME_REQUEST_S)
    signal.raise_signal(signal.SIGTERM)
threading.Event().wait(10)
"""
_TWICE_AT_ONCE = """
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)
raise SystemExit(0 if stop.wait(10) else 3)
"""
_PROGRAM = """
import signal, sys, threading, click
from brew import cli as command
from brew.signals import interruptible, stop_on_signals
how, number, follow = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "follow"
sys.argv[1:] = []
@click.command()
def program():
    if how == "short":
        signal.raise_signal(number)
    stop = threading.Event()
    stop_on_signals(stop, follow=follow)
    if how == "checking":
        with interruptible():
            signal.raise_signal(number)
            stop.wait(10)
            print("went on")
    if how == "told before the check":
        signal.raise_signal(number)
        with interruptible():
            print("went on")
    signal.raise_signal(number)
    assert stop.wait(10)
    print("finished")
    return 1 if how == "violation" else 0
command.run(program, "program")
"""


@pytest.mark.parametrize(
    ("program", "number", "grace", "code"),
    [
        # A run under load never ended once: the handler waited for the lock of its own thread.
        pytest.param(_IN_THE_MIDST, signal.SIGTERM, [], 0, id="SIGTERM while the event's lock is held"),
        pytest.param(_IN_THE_MIDST, signal.SIGINT, [], 0, id="SIGINT while the event's lock is held"),
        pytest.param(_DEAF, signal.SIGTERM, [], 128 + signal.SIGTERM, id="a second signal to who does not listen"),
        pytest.param(_DEAF, signal.SIGTERM, ["0.1"], 128 + signal.SIGTERM, id="the grace of who does not listen"),
        # `make` passes SIGTERM on to a program that got it with its process group already; `timeout` does the same.
        pytest.param(_TWICE_AT_ONCE, signal.SIGTERM, [], 0, id="twice at once is one request"),
    ],
)
def test_a_signal_stops_a_program(program: str, number: signal.Signals, grace: list[str], code: int) -> None:
    command = [sys.executable, "-c", _STOP + program, str(int(number)), *grace]
    assert subprocess.run(command, timeout=_DEADLINE_S, check=False).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("how", "follow", "code", "output"),
    [
        ("short", "drain", None, ""),
        ("working", "drain", None, "finished\n"),
        ("working", "follow", 0, "finished\n"),
        ("violation", "drain", 1, "finished\n"),
        ("checking", "drain", None, ""),
        ("checking", "follow", 0, ""),
        ("told before the check", "drain", None, ""),
    ],
)
def test_the_exit_code_tells_whether_a_program_was_stopped_before_its_end(
    how: str, follow: str, code: int | None, output: str, number: signal.Signals
) -> None:
    """128 and the signal's number; 0 for one that goes on until it is stopped; what was found out counts more."""
    command = [sys.executable, "-c", _PROGRAM, how, str(int(number)), follow]
    ran = subprocess.run(command, timeout=_DEADLINE_S, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (128 + number if code is None else code, output), ran.stderr
    assert ran.stderr == (f"program: stopped by {number.name}\n" if code is None else "")


def test_a_command_ends_when_the_thread_that_its_signal_started_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python crashed when it ended before: 18 of 200 runs of `told before the check` had exit code 139."""
    stop = threading.Event()
    monkeypatch.setattr("_thread.start_new_thread", lambda work, args: threading.Timer(0.2, work, args).start())

    @click.command()
    def program() -> None:
        stop_on_signals(stop)
        signal.raise_signal(signal.SIGTERM)

    assert exit_code_of(program, "program", []) == STOPPED_EXIT
    assert stop.is_set()


@pytest.mark.parametrize(
    ("error", "cause", "code", "line"),
    [
        # PySpark's and IPython's handlers raise it, and click makes its own exception of it.
        (KeyboardInterrupt(), None, 128 + signal.SIGINT, "program: stopped by SIGINT"),
        # A client library says that it returned with an exception set; seen with `show --follow` and SIGTERM.
        (SystemError("x"), Stopped(signal.SIGTERM), 128 + signal.SIGTERM, "program: stopped by SIGTERM"),
        # `doctor --abort` from a script whose input has ended.
        (click.Abort(), None, ExitCode.REFUSED, ".*no answer to a question.*"),
    ],
    ids=["an interrupt that another handler took", "a signal inside a client's call", "a question without an answer"],
)
def test_what_ends_a_command_is_said_without_a_trace(error: Any, cause: Any, code: int, line: str, capfd: Any) -> None:
    @click.command()
    def program() -> None:
        raise error from cause

    assert exit_code_of(program, "program", []) == code
    assert re.fullmatch(line, capfd.readouterr().err.strip())


def test_an_argument_keeps_its_bytes_and_has_a_text_to_print() -> None:
    """What Python hands out for a byte that is no UTF-8 can't be encoded the usual way."""
    typed = b"gold-\xff".decode("utf-8", "surrogateescape")
    assert (as_bytes(typed), as_text(typed)) == (b"gold-\xff", "gold-\N{REPLACEMENT CHARACTER}")
    assert (as_bytes("Café"), as_text("Café")) == ("Café".encode(), "Café")


@pytest.mark.parametrize("group", ["", "g\udcff", "g\0h"])
def test_a_group_that_would_end_the_process_is_refused(group: str) -> None:
    """Client libraries do it by a failed assertion in C; or they look at another group, before the NUL."""
    with pytest.raises(UsageError, match="--group is "):
        checked_group(None, None, group)  # type: ignore[arg-type]
    assert (checked_group(None, None, "Café"), checked_group(None, None, None)) == ("Café", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_refusal_that_names_such_an_argument_is_said(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And not replaced by an encoder's "surrogates not allowed"; what it quotes of a record controls no terminal."""

    @click.command()
    @click.argument("what")
    @click.option("--json", "as_json", is_flag=True)
    def command(what: str, *, as_json: bool) -> None:  # noqa: ARG001 - the shape of a command
        raise Refused(f"nothing is called {what}; name something else")

    assert exit_code_of(command, "pipeline", ["gold-\udcff\x1b]0;", *more]) == ExitCode.REFUSED
    output = capsys.readouterr().err
    text = json.loads(output)["error"] if more else output
    assert "nothing is called gold-\N{REPLACEMENT CHARACTER}" in text
    assert "\x1b" not in output
