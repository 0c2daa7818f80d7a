"""What a fault did, not that it struck: open transactions, copies of tasks, a connection that is cut from outside."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brew.deadline import Deadline
from brew.journal import Entry, Phase, Step
from proof.campaign import matrix, runner
from proof.campaign.cells.wire import slowed
from proof.campaign.cluster import ExternalCluster
from proof.campaign.effects import COPIES, OPEN, copies, cut, held_open
from proof.campaign.journals import first_commit
from proof.campaign.programs import Programs
from proof.campaign.stage import CellEnvironment
from proof.wire.rules import NetworkConditions

# Acts alone: whoever counts one of these as enough has counted the blow and not what it did.
ACTS = {"speculative_runs", "slow_seconds", "storms", "cuts", "pauses", "broker_pauses", "rivals"}

WAITS = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
print("closed" if line.recv(1) == b"" else "word", flush=True)
"""


def _line(at: float, pid: int, step: Step, *, start: int = 0, partition: int = 1) -> Entry:
    return Entry(at, "writer", pid, step, Phase.DONE, {"partition": partition, "start": start, "until": start + 10})


def test_a_transaction_counts_as_open_when_both_sides_say_so() -> None:
    """Begun by its journal and known to the brokers: either alone may be over, or somebody else's."""
    begun = {0: "g:in:0", 1: "g:in:1"}
    assert held_open(begun, {"g:in:1", "g:in:2"}) == {1}
    assert held_open(begun, set()) == held_open({}, {"g:in:1"}) == set()


def test_a_copy_is_a_second_process_at_the_same_range_at_the_same_time() -> None:
    """One after another is a repetition, of another range another task; neither is speculation."""
    first = [_line(1.0, 10, Step.FENCE), _line(5.0, 10, Step.OUTCOME)]
    assert copies([*first, _line(2.0, 11, Step.FENCE), _line(3.0, 11, Step.OUTCOME)]) == 1
    assert copies([*first, _line(6.0, 11, Step.FENCE), _line(7.0, 11, Step.OUTCOME)]) == 0
    assert copies([*first, _line(2.0, 11, Step.FENCE, start=10)]) == 0
    assert copies([*first, _line(2.0, 10, Step.BEGIN)]) == 0


def test_what_survived_its_driver_has_recovered_nothing() -> None:
    """An executor that goes on for a moment is no new run; its commits are not the first ones after the kill."""
    commits = [_line(1.5, 10, Step.COMMIT), _line(9.0, 20, Step.COMMIT)]
    assert first_commit(commits, 1.0) == 1.5
    assert first_commit(commits, 1.0, without={10}) == 9.0
    assert first_commit(commits, 1.0, without={10, 20}) is None


def test_a_slow_network_counts_by_the_steps_that_it_slowed() -> None:
    """Twice the least latency, from the announcement to the answer; the last good and the first bad millisecond."""

    def step(took: float) -> list[Entry]:
        return [_line(1.0, 1, Step.FENCE)._replace(phase=Phase.INTENT), _line(1.0 + took, 1, Step.FENCE)]

    shape = NetworkConditions(latency_s=0.3, jitter_s=0.1)
    assert [slowed(step(took), shape) for took in (0.39, 0.41)] == [0, 1]
    assert slowed(step(0.03), NetworkConditions(rate=125_000.0)) == 1
    assert slowed([_line(9.0, 1, Step.FENCE)], shape) == 0


def test_switching_speculation_on_shows_nothing_without_a_copy(tmp_path: Path) -> None:
    """16 commits, no abort and no fence were once called proven."""
    cell = matrix.named("F09-speculation-connector-spark")
    stage = CellEnvironment(cell, 1, ExternalCluster("nowhere:1"), tmp_path, Programs(tmp_path), Deadline(5))
    judged = runner.Judgement()
    runner.guard(stage, judged)
    assert judged.verdict == "inconclusive"
    assert [doubt for doubt in judged.doubts if f"{COPIES} 0 of 1" in doubt]


def test_no_cell_is_content_with_its_act() -> None:
    """Beside each act stands what it did; what a control did is that it broke."""
    for cell in [one for one in matrix.cells() if one.expected == "proven"]:
        asked = set(cell.needed) - {"holders"}
        assert not asked or asked - ACTS, f"{cell.name} counts {sorted(asked)} only"


@pytest.mark.parametrize("name", ["F06-driver", "F06-executor", "F06-driver-and-executor", "F07-orphan"])
def test_what_kills_spark_strikes_an_open_transaction(name: str) -> None:
    """A process that is killed between two transactions leaves nothing to recover."""
    for reader in ("connector", "direct"):
        assert matrix.named(f"{name}-{reader}-spark").needed[OPEN] == 1


@pytest.fixture
def waiting() -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A process that waits for a word, and our end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", WAITS, port], stdout=subprocess.PIPE, text=True) as process:
            there, _ = server.accept()
            try:
                yield process, there
            finally:
                there.close()
                process.kill()


def test_a_connection_of_another_process_is_cut_from_outside(
    waiting: tuple[subprocess.Popen[str], socket.socket],
) -> None:
    """Both ends see the end of it, as when a network breaks; the process itself is not touched."""
    process, there = waiting
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (found,) = [one.fd for one in psutil.Process(process.pid).net_connections("tcp")]
    cut(psutil.Process(process.pid), found)
    assert process.stdout.readline() == "closed\n"
    there.settimeout(10)
    assert there.recv(1) == b""
    assert process.wait(10) == 0
