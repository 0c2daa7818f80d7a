"""What `make kills` and `make claims-races` write is read by the report, and bears on its bars."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import threading
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness.campaigns import campaign as whole

from brew.cli import exit_code_of
from brew.names import ExitCode
from proof import provenance
from proof.__main__ import proof
from proof.campaign import campaign
from proof.campaign.campaign import Plan, run_campaign
from proof.campaign.cell import LINES, WHOLE, Cell, write_file
from proof.campaign.cells.ledger import ReplyDroppingProxy
from proof.campaign.runner import RunSettings
from proof.claims.members import Races
from proof.commands import claims
from proof.provenance import Kernel, MadeWith, kernel, kernel_modules, kernels
from proof.report.results import Result, read
from proof.report.summary import CriterionResult, acceptance_criteria
from tests.kills import __main__ as kills
from tests.kills.campaign import Killed

BEGAN = datetime(2026, 11, 24, tzinfo=UTC)
MADE = MadeWith("0123456789ab", "ba9876543210", {"kafka": "4.1.1"})


def _written(folder: Path, result: object) -> Result:
    path = write_file(folder / "new" / "r.json", {"command": "c"}, [result])
    (result_read,) = read(path.read_text(), path.name, {MADE.kernel})[1]
    return result_read


def _met(result: Result, title: str) -> CriterionResult:
    (met,) = [bar.met for bar in acceptance_criteria([result]) if bar.title == title]
    return met


@pytest.mark.parametrize(
    ("rounds", "findings", "met"),
    [(1000, (), CriterionResult.YES), (999, (), CriterionResult.SHORT), (1000, ("two owners",), CriterionResult.NO)],
)
def test_races_are_a_result(tmp_path: Path, rounds: int, findings: tuple[str, ...], met: CriterionResult) -> None:
    races = Races(rounds, 8, 64)
    races.owned_after_s, races.wins = [0.1] * rounds, {"c0": 40, "c1": 24}
    races.findings += findings
    result = _written(tmp_path, claims.result(races, 1, BEGAN, MADE))
    assert (result.row, result.commit, result.began[:10], result.current) == ("F34", MADE.commit, "2026-11-24", True)
    assert _met(result, "Rounds of eight claimants racing") is met
    assert result.replay == "python -m proof claims-races --seed 1"


@pytest.mark.parametrize(
    ("store", "count", "findings", "met"),
    [
        ("ledger", 200, {}, CriterionResult.YES),
        ("ledger", 199, {}, CriterionResult.SHORT),
        ("redis-script", 200, {"receiver-duplicate": 1}, CriterionResult.NO),
        ("redis", 200, {"receiver-duplicate": 1}, CriterionResult.YES),
        ("redis", 200, {"receiver-lost": 1}, CriterionResult.NO),
    ],
)
def test_kills_of_a_store_are_a_result(
    tmp_path: Path, store: str, count: int, findings: dict[str, int], met: CriterionResult
) -> None:
    """What a store that is at least once by design repeats is a note; what it loses is an anomaly."""
    killed = Killed(Counter({"in-commit": count}), orders=10, findings=findings)
    result = _written(tmp_path, kills.result(store, killed, count, 1, BEGAN, MADE))
    assert json.dumps(result.versions) == json.dumps(MADE.versions)
    assert result.replay == f"make kills STORES={store}"
    assert _met(result, f"Kills around the commit, {store}") is met


REPLY = b"C\x00\x00\x00\x0bCOMMIT\x00Z\x00\x00\x00\x05I"


@pytest.fixture
def server() -> socket.socket:
    """Answers everything with the end of a COMMIT, but `begin`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client:
            while request := client.recv(100):
                client.sendall(b"BEGIN\x00" if request == b"begin" else REPLY)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[client], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listening:
        yield listening


def _client(proxy: ReplyDroppingProxy) -> socket.socket:
    port = int(proxy.url.rpartition(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), 5)


def test_only_replies_to_a_commit_are_lost_and_the_next_ends_the_time_without_an_answer(server: socket.socket) -> None:
    """Everything before the commit passes; then the client reads the end of its connection, and makes another one."""
    url = f"postgresql://brew@127.0.0.1:{server.getsockname()[1]}/brew"
    with ReplyDroppingProxy(url, 1.0, random.Random(1)) as proxy:
        assert proxy.url.startswith("postgresql://brew@127.0.0.1:")
        with _client(proxy) as client:
            client.sendall(b"begin")
            assert client.recv(100) == b"BEGIN\x00"
            client.sendall(b"commit")
            assert client.recv(100) == b""
            assert (proxy.lost, proxy.recovery_s) == (1, [])
        proxy._probability = 0.0
        with _client(proxy) as client:
            client.sendall(b"commit")
            assert client.recv(100) == REPLY
    assert (proxy.lost, len(proxy.recovery_s)) == (1, 1)


def _experiment(_bootstrap: str, seed: int, _kills: int) -> dict[str, object]:
    about = dict.fromkeys(("row", "fault", "target", "moment", "path", "began"), "")
    return {**about, "seed": seed, "verdict": "proven", "seconds": 0.0, "bound_s": None}


QUIET = Cell("a", "T", "nothing", "nobody", "never", lambda _stage: None, experiment=_experiment)


def _plan(folder: Path, **more: bool) -> Plan:
    return Plan([QUIET], [1], RunSettings(folder), "test", "nowhere:1", **more)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The kernel's files in another place, as in a wheel."""
    for path in kernel_modules().values():
        into = tmp_path / path.relative_to(provenance.ROOT)
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, into)
    return tmp_path


def test_the_kernel_is_what_runs_when_a_range_is_transacted() -> None:
    """The six steps, the transaction, the fence, who is asked about a position; nobody who merely starts them."""
    names = set(kernel_modules())
    assert names > {"brew.transaction", "brew.kafka.transaction", "brew.kafka.committed_offset"}
    assert not {one for one in names if one.startswith(("brew.readers.direct", "brew.driver.run", "proof"))}


def test_the_sinks_cells_are_of_a_kernel_with_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the sink says nothing about the other cells, and one of tasks that write nothing about one writer."""
    ranges, one, tasks = (set(kernel_modules(kind=kind)) for kind in Kernel)
    assert one - ranges > {"brew.sink.position", "brew.sink.rows", "brew.sink.batch", "brew.kafka.sink_transaction"}
    assert tasks - one == {
        *("brew.sink.shared", "brew.sink.tasks"),
        *("brew.kafka.shared_transaction", "brew.kafka.shared_writer", "brew.kafka.arrow_batches"),
    }
    assert ranges < one < tasks
    assert kernels() == {kernel(kind=kind) for kind in Kernel}
    monkeypatch.setattr(provenance, "_SINK_ROWS", {QUIET.row})
    (result,) = run_campaign(_plan(tmp_path), lambda _cell, _seed: None, lambda _result: None)
    assert result.kernel == kernel(kind=Kernel.SINK_TASKS) not in {kernel(), kernel(kind=Kernel.SINK_ONE)}


@pytest.mark.parametrize(
    ("row", "name", "kind"),
    [
        ("F01", "F01-one", Kernel.RANGES),
        ("F39", "F39-copy-one", Kernel.SINK_ONE),
        ("F39", "F39-copy-tasks", Kernel.SINK_TASKS),
        ("F43", "F43-deleted", Kernel.SINK_TASKS),
    ],
)
def test_a_cells_kernel_is_known_by_its_row_and_name(row: str, name: str, kind: Kernel) -> None:
    assert Kernel.of(row, name) is kind


def test_the_same_files_have_the_same_hash_wherever_they_are(copied: Path) -> None:
    """A wheel has no git; one changed line of one module is another kernel, and so is a module that is not there."""
    assert kernel(copied) == kernel()
    assert provenance.commit(copied) == "unknown"
    with (copied / "brew/deadline.py").open("a") as file:
        file.write("_MOMENT_S += 0\n")
    assert kernel(copied) != kernel()
    (copied / "brew/transaction.py").unlink()
    with pytest.raises(FileNotFoundError):
        kernel(copied)


def test_words_about_the_kernel_are_no_part_of_it(copied: Path) -> None:
    """Comments, docstrings of all kinds and empty lines change nothing; a string that is used does."""
    file = copied / "brew/deadline.py"
    code = file.read_text()
    for old, new in (
        ("_DELIVERY = 0.9\n", "_DELIVERY = 0.9  # a share of the time\n\n\n# Other words.\n"),
        ('    """', '    """Other words.\n\n    # '),
    ):
        assert old in code
        file.write_text(code.replace(old, new, 1))
        assert kernel(copied) == kernel(), new
    file.write_text(code + '\n_NAME = "a # b"\n')
    first = kernel(copied)
    file.write_text(code + '\n_NAME = "a # c"\n')
    assert kernel(copied) not in {first, kernel()}


def test_somebody_elses_program_and_brokers_are_not_told_as_ours() -> None:
    ours, theirs = MadeWith.now(), MadeWith.now(our_program=False, our_brokers=False)
    assert ours.kernel == kernel()
    assert (theirs.commit, theirs.kernel, theirs.versions["kafka"]) == ("unknown", "unknown", "unknown")
    assert {"confluent-kafka", "kafka-python", "pyspark", "python", "kafka"} == ours.versions.keys()


def test_each_result_says_what_it_was_made_with(tmp_path: Path) -> None:
    (result,) = run_campaign(_plan(tmp_path), lambda _cell, _seed: None, lambda _result: None)
    made_with = MadeWith.now(our_brokers=False)
    line = json.loads((tmp_path / LINES).read_text())
    about = json.loads((tmp_path / WHOLE).read_text())["campaign"]
    for one in (asdict(result), line, about):
        assert {name: one[name] for name in ("commit", "kernel", "versions")} == asdict(made_with)


def test_a_resumed_campaign_repeats_what_another_kernel_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there of this kernel is left out; of another one it shows nothing."""
    began: list[str] = []
    plan = _plan(tmp_path, resume=True)
    for _ in range(2):
        run_campaign(plan, lambda cell, _seed: began.append(cell.name), lambda _result: None)
    assert began == ["a"]
    monkeypatch.setattr(campaign, "_made_with", lambda *_: MadeWith("c", "another", {}))
    done = run_campaign(plan, lambda cell, _seed: began.append(cell.name), lambda _result: None)
    assert (began, [one.kernel for one in done]) == (["a", "a"], ["another"])


def test_a_report_of_results_without_a_kernel_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, out, summary = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.md"
    results.write_text(json.dumps(whole(1, broken=False)))
    words = ["report", str(results), "--out", str(out), "--summary-md", str(summary)]
    assert exit_code_of(proof, "proof", words) == ExitCode.DONE
    output = capsys.readouterr().out
    assert exit_code_of(proof, "proof", [*words, "--json"]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    sentence = f"86 of 86 runs were made with another kernel than today's, {kernel()} (commit unknown)"
    for text in (output, out.read_text(), summary.read_text(), document["outdated"]):
        assert sentence in text.replace("&#39;", "'")
    assert "commit unknown: of another kernel" in out.read_text()
    assert (document["verdict"], document["cells"]["proven"], document["kernel"]) == ("inconclusive", 0, kernel())
    assert {bar["met"] for bar in document["bars"]} <= {"of another kernel", "not measured"}
    assert {run["commit"] for cell in document["matrix"] for run in cell["runs"]} == {"unknown"}


def test_the_committed_summary_is_what_the_report_makes_of_the_committed_results(tmp_path: Path) -> None:
    """When the kernel changes the results show nothing of it, and the page has to say so: `make prove-report`."""
    folder, fresh = provenance.ROOT / "docs/proof", tmp_path / "summary.md"
    files = [str(folder / f"{name}.json") for name in ("results", "claims-races", "kills")]
    words = ["report", *files, "--out", str(tmp_path / "report.html"), "--summary-md", str(fresh)]
    assert exit_code_of(proof, "proof", words) == ExitCode.DONE
    hashes = re.compile(r"(today's, )[0-9a-f]{12}")
    assert hashes.sub(r"\1", (folder / "summary.md").read_text("utf-8")) == hashes.sub(r"\1", fresh.read_text("utf-8"))
