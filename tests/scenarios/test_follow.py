"""A following run and SIGTERM: it ends cleanly, soon, and leaves no transaction open."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from harness.pipeline import Ran, Running, Stage, until

LONGEST_STOP_S = 10.0


def stopped(program: Running, head: int) -> tuple[Ran, float]:
    """SIGTERM to ``head``; how the program ended, and in how many seconds."""
    before = program.seconds
    psutil.Process(head).send_signal(signal.SIGTERM)
    ran = program.wait(60)
    return ran, ran.seconds - before


def done(stage: Stage, count: int) -> bool:
    return sum(log.last_stable - log.first for log in stage.logs(stage.names.output).values()) >= count


@pytest.mark.parametrize(("to", "load"), [("make", "idle"), ("process", "under-load")])
def test_sigterm_ends_a_following_run_within_ten_seconds(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, load: str
) -> None:
    """Running transactions are finished or aborted; exit 0, no reader waits for a time-out, no temporary file stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={tmp_path} -XX:-UsePerfData")
    stage.create()
    options = () if load == "idle" else ("--max-records-per-transaction", "20")
    stage.seed(20 if load == "idle" else 12_000)
    command = stage.make_command("run-pipeline", FOLLOW="1")
    with stage.start(command) if to == "make" else stage.follow("--follow", *options) as program:
        program.await_cycle()
        if load == "idle":
            until(lambda: done(stage, 20), "the first orders")
            stage.seed(20)
            until(lambda: done(stage, 40), "orders that came while it waited")
        ran, took = stopped(program, program.pid)
    if to == "process":
        assert ran.code == 0, ran.text
    else:
        # make passes the signal on and waits; then it ends by the signal itself.
        assert ran.code in {0, -signal.SIGTERM}, ran.text
    assert "Traceback" not in ran.text
    assert any("stopping" in note for note in ran.notes), ran.text
    print(f"SIGTERM took {took:.2f} s")
    assert took < LONGEST_STOP_S
    stage.nothing_open()
    stage.nobody_left()
    assert list(tmp_path.iterdir()) == []
    if load == "under-load":
        assert not done(stage, 12_000), "the load ended before the signal came"
    stage.drain_alone()
    stage.proven(inputs=40 if load == "idle" else 12_000)
