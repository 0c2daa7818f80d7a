"""Ctrl-C and SIGTERM in the middle of a run: a clean end, an exit code that tells, and no transaction left open."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from harness.pipeline import Ran, Running, Stage, until

LONGEST_STOP_S = 10.0
ORDERS = 12_000
SMALL = ("--max-records-per-transaction", "20", "--progress", "json")


def interrupted(program: Running, number: signal.Signals, to: str) -> tuple[Ran, float]:
    """Send the signal to the driver alone, or as a terminal does: to all of the foreground's process group."""
    before = program.seconds
    if to == "group":
        os.killpg(program.pid, number)
    else:
        psutil.Process(program.pid).send_signal(number)
    ran = program.wait(60)
    return ran, ran.seconds - before


def ended_well(stage: Stage, ran: Ran, took: float, *codes: int) -> None:
    """One line, no trace, soon, nothing open; what is left is done by the next run, and all of it came once."""
    assert ran.code in codes, ran.text
    assert "Traceback" not in ran.text
    assert "Abort" not in ran.text
    assert took < LONGEST_STOP_S
    stage.nothing_open()
    stage.nothing_open(stage.names.dead_letter)
    stage.no_process_left()


@pytest.mark.parametrize(
    ("master", "reader", "number", "to"),
    [
        ("local[2]", "direct", signal.SIGINT, "group"),
        ("local[1]", "direct", signal.SIGTERM, "driver"),
        ("local[2]", "connector", signal.SIGINT, "driver"),
        ("none", "direct", signal.SIGTERM, "group"),
        ("none", "connector", signal.SIGINT, "group"),
    ],
)
def test_an_interrupted_drain_ends_clean_with_128_and_the_signals_number(
    stage: Stage, master: str, reader: str, number: signal.Signals, to: str
) -> None:
    """PySpark takes SIGINT for itself when a context starts: a run that lets it leaves its transactions open."""
    stage.create(orders=ORDERS)
    with stage.follow("--master", master, "--reader", reader, *SMALL) as program:
        program.await_cycle()
        ran, took = interrupted(program, number, to)
    ended_well(stage, ran, took, 128 + number)
    assert f"stopped by {number.name}" in ran.err, ran.text
    assert len(ran.err.splitlines()) == 1, ran.err
    assert not stage.drained(), "the drain ended before the signal came"
    stage.drain_locally()
    stage.proven(inputs=ORDERS)


def test_ctrl_c_ends_a_following_run_with_0(stage: Stage) -> None:
    """It was told to go on until it is told to stop: that is its end."""
    stage.create(orders=20)
    with stage.follow("--follow", "--master", "none", *SMALL) as program:
        program.await_cycle()
        ran, took = interrupted(program, signal.SIGINT, "group")
    ended_well(stage, ran, took, 0)
    stage.drain_locally()
    stage.proven(inputs=20)


@pytest.mark.usefixtures("quick_jvms")
def test_ctrl_c_on_submit_is_spark_submits_and_the_next_run_heals_it(stage: Stage) -> None:
    """spark-submit takes our place, and ends with its JVM at once: the next run heals it, as after a crash."""
    stage.create(orders=ORDERS)
    with stage.python("pipeline", "submit", *stage.options(), "--master", "local[2]", *SMALL[:2]) as program:
        program.await_cycle()
        ran, took = interrupted(program, signal.SIGINT, "group")
    assert ran.code == 128 + signal.SIGINT, ran.text
    assert took < LONGEST_STOP_S
    stage.no_process_left()
    assert not stage.drained(), "the drain ended before the signal came"
    stage.drain_locally()
    stage.nothing_open()
    stage.proven(inputs=ORDERS)


def test_ctrl_c_through_make_leaves_nothing_open(stage: Stage) -> None:
    """The terminal interrupts make, too, which waits for the program and ends by the signal itself."""
    stage.create(orders=ORDERS)
    with stage.start(stage.make_command("run-pipeline", MASTER="none", FOLLOW="1")) as program:
        program.await_cycle()
        ran, took = interrupted(program, signal.SIGINT, "group")
    ended_well(stage, ran, took, -signal.SIGINT)
    stage.drain_locally()
    stage.proven(inputs=ORDERS)


@pytest.mark.parametrize(("to", "load"), [("make", "idle"), ("process", "under-load")])
def test_sigterm_ends_a_following_run_within_ten_seconds(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, load: str
) -> None:
    """Running transactions are finished or aborted; exit 0, no reader waits for a time-out, no temporary file stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={tmp_path} -XX:-UsePerfData")
    stage.create()
    orders = 20 if load == "idle" else ORDERS
    stage.seed(orders)
    command = stage.make_command("run-pipeline", FOLLOW="1")
    with stage.start(command) if to == "make" else stage.follow("--follow", *SMALL) as program:
        program.await_cycle()
        if load == "idle":
            until(lambda: stage.outputs() == orders, "the first orders")
            stage.seed(orders)
            until(lambda: stage.outputs() == 2 * orders, "orders that came while it waited")
        ran, took = interrupted(program, signal.SIGTERM, "driver")
    # make passes the signal on and waits; then it ends by the signal itself.
    ended_well(stage, ran, took, *([0, -signal.SIGTERM] if to == "make" else [0]))
    assert any("stopping" in note for note in ran.notes), ran.text
    assert list(tmp_path.iterdir()) == []
    assert load == "idle" or not stage.drained(), "the load ended before the signal came"
    stage.drain_locally()
    stage.proven(inputs=2 * orders if load == "idle" else orders)


HANGS = """
import itertools, time
seen = itertools.count()
def hang(record):
    if next(seen) >= 100:
        print("hangs", flush=True)
        time.sleep(600)
    return record
"""


@pytest.mark.parametrize("reader", ["direct", "connector"])
def test_a_function_that_hangs_does_not_hold_back_a_run_without_spark(
    stage: Stage, tmp_path: Path, reader: str
) -> None:
    """Its transaction is fenced: the process took up to --transaction-timeout to end, and a reader waited as long."""
    (tmp_path / "hanging.py").write_text(HANGS)
    stage.create()
    stage.seed(1000)
    options = ("--follow", "--master", "none", "--transform", f"{tmp_path / 'hanging.py'}:hang", "--reader", reader)
    with stage.follow(*options, *SMALL) as program:
        program.await_line(lambda line: line == "hangs\n")
        ran, took = interrupted(program, signal.SIGTERM, "driver")
    ended_well(stage, ran, took, 0)
