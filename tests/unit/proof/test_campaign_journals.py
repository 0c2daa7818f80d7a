"""What journals and brokers tell of a fault: its effect, recoveries, stalls, and what is kept of an hour of it."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack, nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import Mock, call

import psutil
import pytest

from brew.deadline import Deadline
from brew.journal import Entry, Journal, Phase, Step
from brew.kafka.cluster_admin import coordinator_partition
from proof.campaign import campaign, effects, runner
from proof.campaign.cell import p95
from proof.campaign.cells import mixture, spark, writer
from proof.campaign.cells.wire import slowed
from proof.campaign.cluster import ExternalCluster
from proof.campaign.effects import COPIES, OPEN, copies, cut
from proof.campaign.journals import Journals, Kill, first_commit, open_ranges, recoveries, stalls
from proof.campaign.programs import Programs
from proof.campaign.stage import CellEnvironment
from proof.wire.rules import NetworkConditions


def _line(
    at: float, step: Step, phase: Phase = Phase.DONE, *, pid: int = 1, partition: int = 0, start: int = 0, **more: str
) -> Entry:
    return Entry(at, "writer", pid, step, phase, {"partition": partition, "start": start, "until": start + 10, **more})


def _read(at: float, source_partition: int, source_offset: int, count: int) -> Entry:
    run = [100 + source_offset, source_partition, source_offset, count]
    return Entry(at, "reader", 9, Step.READ, Phase.DONE, {"topic": "out", "partition": 0, "runs": [run]})


def _environment(folder: Path) -> CellEnvironment:
    cell = campaign.named("F09-speculation-connector-spark")
    return CellEnvironment(cell, 1, ExternalCluster("nowhere:1"), folder, Programs(folder), Deadline(5))


def test_a_recovery_ends_with_the_first_commit_that_was_acknowledged_after_the_last_kill() -> None:
    """An announced commit is none, and one from before the kill does not count; a second death is a recovery's own."""
    lines = [_line(1.0, Step.COMMIT), _line(2.1, Step.COMMIT, Phase.INTENT, pid=2)]
    lines += [_line(at, Step.COMMIT, pid=2) for at in (2.5, 2.6)]
    assert recoveries(lines, [Kill(2.0, 1)]) == [0.5]
    assert recoveries([_line(2.5, Step.COMMIT, pid=3)], [Kill(1.0, 1), Kill(2.0, 2)]) == [0.5]
    assert recoveries(lines, []) == []


def test_open_are_the_ranges_begun_and_not_ended_by_the_process_that_died() -> None:
    """Another process's transactions are its own, and what it did after the kill can't be."""
    lines = [
        _line(1.0, Step.BEGIN, partition=0, start=0),
        _line(1.1, Step.COMMIT, partition=0),
        _line(1.2, Step.BEGIN, partition=1, start=40),
        _line(1.3, Step.COMMIT, Phase.INTENT, partition=1),
        _line(1.2, Step.BEGIN, pid=2, partition=2),
    ]
    assert open_ranges(lines, Kill(1.5, 1)) == {1: 40}


def test_readers_are_held_back_until_they_are_given_a_record_of_the_open_range() -> None:
    """What a reader gets from before the range was there already, however late it comes."""
    reads = [_read(2.2, 1, 30, 10), _read(2.4, 0, 40, 10), _read(3.5, 1, 38, 5)]
    lines = [_line(1.0, Step.BEGIN, partition=1, start=40), *reads]
    assert stalls(lines, [Kill(2.0, 1)]) == [1.5]
    assert stalls(lines, []) == []
    assert stalls(lines, [Kill(2.0, 1), Kill(3.6, 2)]) == [1.5], "one that came later"
    assert stalls(lines, [Kill(2.0, 1), Kill(3.4, 2)]) == [], "one in between may have held them back"
    between = [_line(1.0, Step.BEGIN), _line(1.1, Step.COMMIT), _read(3.0, 0, 0, 5)]
    assert stalls(between, [Kill(2.0, 1)]) == [], "a kill between transactions holds nobody back"


def test_the_percentile_is_a_value_that_was_measured() -> None:
    assert p95([float(n) for n in range(1, 21)]) == 19.0
    assert p95([3.0, 1.0, 2.0]) == 3.0


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        *(("a", 97 % 50), ("hello", 99162322 % 50), ("polygenelubricants", 0)),
        *(("brew-enricher", 17), ("", 0), ("ä", 228 % 50)),
    ],
)
def test_a_name_is_kept_where_javas_hash_says(name: str, partition: int) -> None:
    """The coordinator is the leader of that partition; the smallest integer has no positive twin."""
    assert coordinator_partition(name, 50) == partition


# Acts alone: whoever counts one of these as enough has counted the blow and not what it did.
ACTS = {"speculative_runs", "slow_seconds", "storms", "cuts", "pauses", "broker_pauses", "rivals"}
WAITS = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
print("closed" if connection.recv(1) == b"" else "word", flush=True)
"""


@pytest.mark.parametrize(("open_ids", "caught"), [(["g:in:1", "g:in:9"], {1}), (["g:in:0"], set()), ([], set())])
def test_a_process_is_caught_in_a_transaction_that_its_brokers_know_or_goes_on(
    open_ids: list[str], caught: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of partition 0 its transaction has ended; another process's is none of it."""
    monkeypatch.setattr(effects, "_TRIES", 2)
    stage = _environment(tmp_path)
    stage.journals.entries = [
        *(_line(1.0, Step.BEGIN), _line(1.1, Step.COMMIT), _line(1.2, Step.BEGIN, partition=1)),
        _line(1.2, Step.BEGIN, pid=2, partition=2),
    ]
    monkeypatch.setattr(stage, "names", SimpleNamespace(transactional_id="g:in:{}".format))
    known = [SimpleNamespace(transactional_id=name) for name in open_ids]
    monkeypatch.setattr(stage, "open_transactions", lambda: known)
    process = Mock(pid=1)
    assert effects.caught_open(stage, [process]) == caught
    assert (dict(stage.fired), process.mock_calls[-1]) == ({OPEN: 1}, call.suspend()) if caught else ({}, call.resume())


@pytest.mark.parametrize(
    ("entry", "fenced"),
    [
        (_line(2.0, Step.COMMIT, Phase.FAILED, detail="Fenced: by a newer one"), True),
        (_line(1.0, Step.COMMIT, Phase.FAILED, detail="Fenced: by a newer one"), False),
        (_line(2.0, Step.COMMIT, Phase.FAILED, detail="Fenced: by a newer one", pid=2), False),
        (_line(2.0, Step.COMMIT, Phase.FAILED, detail="Retriable: no leader"), False),
        (_line(2.0, Step.COMMIT, Phase.INTENT, detail="Fenced: by a newer one"), False),
    ],
)
def test_a_zombie_is_fenced_only_by_its_own_words_after_it_woke(
    entry: Entry, fenced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_FENCED_S", 0.02)
    stage = _environment(tmp_path)
    stage.journals.entries = [entry]
    assert effects.fenced_since(stage, {1}, 1.5) is fenced


COMMITTING = (Step.COMMIT, Phase.INTENT)


@pytest.mark.parametrize(
    ("entries", "frozen"),
    [
        ([_line(1.0, *COMMITTING), _line(1.0, Step.BEGIN, partition=1)], {0}),
        ([_line(1.0, *COMMITTING), _line(1.1, Step.COMMIT)], set()),
        ([_line(1.0, *COMMITTING, pid=2)], set()),
    ],
)
def test_a_writer_is_frozen_at_the_moment_that_is_asked_for(
    entries: list[Entry], frozen: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own last line in a partition; else it goes on, and nothing is counted."""
    monkeypatch.setattr(writer, "_TRIES", 1)
    stage, program = _environment(tmp_path), Mock(pid=1)
    stage.journals.entries = entries
    assert set(writer.freeze(stage, program, "committing")) == frozen
    assert (program.signal.mock_calls[-1].args, stage.fired["pauses"]) == (
        ((signal.SIGSTOP,), 1) if frozen else ((signal.SIGCONT,), 0)
    )


def test_a_process_died_if_a_partitions_last_attempt_has_no_outcome(tmp_path: Path) -> None:
    """Each once, however many partitions it had; what a reader of its number read shows nothing."""
    stage = _environment(tmp_path)
    stage.journals.entries = [
        *(_line(1.0, Step.BEGIN), _line(1.1, Step.OUTCOME), _read(1.2, 0, 0, 1)._replace(pid=1)),
        *(_line(1.0, Step.BEGIN, pid=2), _line(1.0, Step.BEGIN, pid=2, partition=1)),
        *(_line(1.0, Step.OUTCOME, pid=3), _line(1.1, Step.FENCE, pid=3)),
    ]
    assert spark.deaths(stage) == 2


@pytest.mark.parametrize(
    ("entry", "copied"),
    [
        (_line(2.0, Step.FENCE, pid=2), True),
        (_line(2.0, Step.FENCE, pid=2, partition=1), False),
        (_line(2.0, Step.FENCE, Phase.INTENT, pid=2), False),
        (_line(2.0, Step.BEGIN, pid=2), False),
        (_line(1.4, Step.FENCE, pid=2), False),
        (_line(2.0, Step.FENCE, pid=1), False),
    ],
)
def test_a_copy_fences_the_range_in_which_a_task_sleeps(entry: Entry, copied: bool, tmp_path: Path) -> None:
    stage = _environment(tmp_path)
    stage.journals.entries = [_line(1.0, Step.BEGIN), _line(1.1, Step.BEGIN, partition=1), entry]
    stage.journals.entries.insert(2, _line(1.2, Step.COMMIT, partition=1))
    assert spark.copied(stage, {1}, 1.5) is copied


def test_a_copy_is_a_second_process_at_the_same_range_at_the_same_time() -> None:
    """One after another is a repetition, of another range another task; neither is speculation."""
    first = [_line(1.0, Step.FENCE, pid=10), _line(5.0, Step.OUTCOME, pid=10)]
    assert copies([*first, _line(2.0, Step.FENCE, pid=11), _line(3.0, Step.OUTCOME, pid=11)]) == 1
    assert copies([*first, _line(6.0, Step.FENCE, pid=11), _line(7.0, Step.OUTCOME, pid=11)]) == 0
    assert copies([*first, _line(2.0, Step.FENCE, pid=11, start=10)]) == 0
    assert copies([*first, _line(2.0, Step.BEGIN, pid=10)]) == 0


def test_commits_elsewhere_and_of_what_survived_its_driver_end_no_recovery() -> None:
    """A fault goes for one partition's brokers, and an executor that goes on for a moment is no new run."""
    lines = [_line(1.1, Step.COMMIT, partition=3), _line(4.0, Step.COMMIT, partition=2)]
    assert [first_commit(lines, 1.0, *only) for only in ((), ([2],), ([1],))] == [1.1, 4.0, None]
    commits = [_line(1.5, Step.COMMIT, pid=10), _line(9.0, Step.COMMIT, pid=20)]
    assert first_commit(commits, 1.0) == 1.5
    assert first_commit(commits, 1.0, without={10}) == 9.0
    assert first_commit(commits, 1.0, without={10, 20}) is None


def test_a_slow_network_counts_by_the_steps_that_it_slowed() -> None:
    """Twice the least latency, from the announcement to the answer; the last good and the first bad millisecond."""

    def step(took: float) -> list[Entry]:
        return [_line(1.0, Step.FENCE, pid=1)._replace(phase=Phase.INTENT), _line(1.0 + took, Step.FENCE, pid=1)]

    shape = NetworkConditions(latency_s=0.3, jitter_s=0.1)
    assert [slowed(step(took), shape) for took in (0.39, 0.41)] == [0, 1]
    assert slowed(step(0.03), NetworkConditions(rate=125_000.0)) == 1
    assert slowed([_line(9.0, Step.FENCE, pid=1)], shape) == 0


def test_switching_speculation_on_shows_nothing_without_a_copy(tmp_path: Path) -> None:
    """16 commits, no abort and no fence were once called proven."""
    judged = runner.Judgement()
    runner.guard(_environment(tmp_path), judged)
    assert judged.verdict == "inconclusive"
    assert [doubt for doubt in judged.doubts if f"{COPIES} 0 of 1" in doubt]


def test_no_cell_is_content_with_its_act() -> None:
    """Beside each act stands what it did; what a control did is that it broke."""
    for cell in [one for one in campaign.cells() if one.expected == "proven"]:
        needed = set(cell.needed) - {"holders"}
        assert not needed or needed - ACTS, f"{cell.name} counts {sorted(needed)} only"


@pytest.mark.parametrize("reader", ["connector", "direct"])
@pytest.mark.parametrize("name", ["F06-driver", "F06-executor", "F06-driver-and-executor", "F07-orphan"])
def test_what_kills_spark_strikes_an_open_transaction(name: str, reader: str) -> None:
    """A process that is killed between two transactions leaves nothing to recover."""
    assert campaign.named(f"{name}-{reader}-spark").needed[OPEN] == 1


def test_a_connection_of_another_process_is_cut_from_outside() -> None:
    """Both ends see the end of it, as when a network breaks; the process itself is not touched."""
    with ExitStack() as ending:
        server = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
        command = [sys.executable, "-c", WAITS, str(server.getsockname()[1])]
        process = ending.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        ending.callback(process.kill)
        connection = ending.enter_context(server.accept()[0])
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (descriptor,) = [one.fd for one in psutil.Process(process.pid).net_connections("tcp")]
        cut(psutil.Process(process.pid), descriptor)
        assert process.stdout.readline() == "closed\n"
        connection.settimeout(10)
        assert connection.recv(1) == b""
        assert process.wait(10) == 0


TRANSACTIONS = 50


def _transactions(journal: Journal) -> None:
    for number in range(TRANSACTIONS):
        place = {"topic": "in", "partition": number % 4, "start": number, "until": number + 1}
        for step, phase in ((Step.BEGIN, Phase.DONE), (Step.COMMIT, Phase.INTENT), (Step.COMMIT, Phase.DONE)):
            journal.write(step, phase, **place)
        journal.write(Step.READ, topic="out", partition=0, runs=[[0, 0, 0, 1]])


class FakeStage:
    """What a mixture asks of its stage: every round writes its lines and looks at them, nothing is broken."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.journals, self._journal = Journals(folder), Journal(folder, "writer")
        self.random, self.minutes, self.cell = Random(1), 60.0, SimpleNamespace(partitions=4, reader="connector")
        self.names = SimpleNamespace(topics=lambda: ["in", "out"])
        self.sandbox = SimpleNamespace(heal=lambda: None)
        self.cluster = SimpleNamespace(restore=lambda *_: None)
        self.feeding, self.orders = nullcontext, lambda *_: None
        self.writer = lambda *_, **__: SimpleNamespace(code=lambda: None)
        self.stop_running = lambda _programs: None
        self.rounds_left, self.held = rounds, list[int]()

    def recovered(self, _since: float) -> None:
        _transactions(self._journal)
        self.held.append(len(self.journals.look()))

    def fire(self, _what: str) -> None:
        self.rounds_left -= 1


def _mixture(folder: Path, rounds: int, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeStage, int]:
    """Play so many rounds; the stage, and how many bytes were in use beyond the start at the end of them."""
    stage = FakeStage(folder, rounds)
    clock = SimpleNamespace(monotonic=lambda: 0.0 if stage.rounds_left else 1e9, time=lambda: 0.0)
    monkeypatch.setattr(mixture, "time", clock)
    monkeypatch.setattr(mixture, "_round", lambda *_: None)
    gc.collect()
    tracemalloc.start()
    mixture.mixture(60.0, stage)
    gc.collect()
    used, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return stage, used


def test_what_a_mixture_keeps_does_not_grow_with_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour once took 830 MB; each round's lines go when it has been judged, and every commit still counts."""
    short, few = _mixture(tmp_path / "few", 3, monkeypatch)
    long, many = _mixture(tmp_path / "many", 60, monkeypatch)
    assert set(long.held) == set(short.held) == {TRANSACTIONS * 4}
    assert long.journals.entries == []
    assert many < few + 20_000, f"{many} bytes after 60 rounds, {few} after 3"
    assert long.journals.commits == 60 * TRANSACTIONS


def test_a_mixture_that_forgets_nothing_is_seen_to_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journals, "forget", lambda _self: None)
    stage, _used = _mixture(tmp_path, 5, monkeypatch)
    assert stage.held == [TRANSACTIONS * 4 * rounds for rounds in range(1, 6)]


def test_what_was_forgotten_is_read_from_disk_for_the_verdict(tmp_path: Path) -> None:
    journals, journal = Journals(tmp_path), Journal(tmp_path, "writer")
    for _ in range(3):
        _transactions(journal)
        journals.forget()
    journal.write(Step.FENCE, Phase.FAILED, partition=1, detail="Fenced: by a newer one")
    lines = list(journals)
    assert journals.entries == []
    assert sum(kind == "committed" for line in lines for kind in runner.kinds(line)) == journals.commits == 150
    assert [kind for line in lines for kind in runner.kinds(line) if kind == "fenced"] == ["fenced"]
    middle = [line.at for line in lines][300]
    assert recoveries(journals, [Kill(middle, 1)]) == recoveries(lines, [Kill(middle, 1)]) != []
    pid = lines[0].pid
    begun = next(line for line in lines[300:] if line.step is Step.BEGIN and line.fields["start"] == 0)
    assert stalls(journals, [Kill(begun.at, pid)]) == stalls(lines, [Kill(begun.at, pid)])
    assert len(stalls(journals, [Kill(begun.at, pid)])) == 1
