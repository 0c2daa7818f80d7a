"""What a result was made with: the kernel's files decide, not their place; a result of another kernel is run again."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from harness.campaigns import campaign as whole

from brew.cli import exit_code_of
from brew.names import ExitCode
from proof import provenance
from proof.__main__ import proof
from proof.campaign import campaign, result
from proof.campaign.campaign import Plan, run_campaign
from proof.campaign.cell import Cell
from proof.campaign.runner import RunSettings
from proof.provenance import MadeWith, kernel, kernel_modules
from proof.report.results import read
from proof.report.summary import Summary
from proof.report.text import markdown


def _experiment(_bootstrap: str, seed: int, _kills: int) -> dict[str, object]:
    about = dict.fromkeys(("row", "fault", "target", "moment", "path", "began"), "")
    return {**about, "seed": seed, "verdict": "proven", "seconds": 0.0, "bound_s": None}


QUIET = Cell("a", "T", "nothing", "nobody", "never", lambda _stage: None, experiment=_experiment)


def _copy(folder: Path) -> Path:
    """The kernel's files in another place, as in a wheel."""
    for path in kernel_modules().values():
        into = folder / path.relative_to(provenance.ROOT)
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, into)
    return folder


def test_the_kernel_is_what_runs_when_a_range_is_transacted() -> None:
    """The six steps, the transaction, the fence, who is asked about a position; nobody who merely starts them."""
    names = set(kernel_modules())
    assert names > {"brew.transaction", "brew.kafka.transaction", "brew.kafka.committed_offset"}
    assert not {one for one in names if one.startswith(("brew.readers.direct", "brew.driver.run", "proof"))}


def test_the_same_files_have_the_same_hash_wherever_they_are(tmp_path: Path) -> None:
    """A wheel has no git; one changed byte of one module is another kernel, and so is a module that is not there."""
    root = _copy(tmp_path)
    assert kernel(root) == kernel()
    assert provenance.commit(root) == "unknown"
    with (root / "brew/deadline.py").open("a") as file:
        file.write("\n")
    assert kernel(root) != kernel()
    (root / "brew/transaction.py").unlink()
    with pytest.raises(FileNotFoundError):
        kernel(root)


def test_somebody_elses_program_and_brokers_are_not_told_as_ours() -> None:
    """`--writer` and `--bootstrap` put others in their places."""
    ours, theirs = MadeWith.now(), MadeWith.now(our_program=False, our_brokers=False)
    assert ours.kernel == kernel()
    assert (theirs.commit, theirs.kernel, theirs.versions["kafka"]) == ("unknown", "unknown", "unknown")
    assert {"confluent-kafka", "kafka-python", "pyspark", "python", "kafka"} == ours.versions.keys()


def test_each_result_says_what_it_was_made_with(tmp_path: Path) -> None:
    """In the line that is written as soon as the cell is over, and around the whole."""
    plan = Plan([QUIET], [1], RunSettings(tmp_path), "test", "nowhere:1")
    (found,) = run_campaign(plan, lambda _cell, _seed: None, lambda _result: None)
    made = MadeWith.now(our_brokers=False)
    told = json.loads((tmp_path / result.LINES).read_text())
    about = json.loads((tmp_path / result.WHOLE).read_text())["campaign"]
    for one in (asdict(found), told, about):
        assert {name: one[name] for name in ("commit", "kernel", "versions")} == asdict(made)


def test_a_campaign_that_is_taken_up_again_repeats_what_another_kernel_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there of this kernel is left out; of another one it shows nothing."""
    began: list[str] = []
    plan = Plan([QUIET], [1], RunSettings(tmp_path), "test", "nowhere:1", resume=True)
    for _ in range(2):
        run_campaign(plan, lambda cell, _seed: began.append(cell.name), lambda _result: None)
    assert began == ["a"]
    monkeypatch.setattr(campaign, "_made_with", lambda _plan: MadeWith("c", "another", {}))
    done = run_campaign(plan, lambda cell, _seed: began.append(cell.name), lambda _result: None)
    assert (began, [one.kernel for one in done]) == (["a", "a"], ["another"])


def test_a_report_of_results_without_a_kernel_says_so_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Page, Markdown, JSON and the command's own words; nothing in them is proven."""
    results, out, summary = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.md"
    results.write_text(json.dumps(whole(1, broken=False)))
    words = ["report", str(results), "--out", str(out), "--summary-md", str(summary)]
    assert exit_code_of(proof, "proof", words) == ExitCode.DONE
    said = capsys.readouterr().out
    assert exit_code_of(proof, "proof", [*words, "--json"]) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    sentence = f"86 of 86 runs were made with another kernel than today's, {kernel()} (commit unknown)"
    for text in (said, out.read_text(), summary.read_text(), told["outdated"]):
        assert sentence in text.replace("&#39;", "'")
    assert "commit unknown: of another kernel" in out.read_text()
    assert (told["verdict"], told["cells"]["proven"], told["kernel"]) == ("inconclusive", 0, kernel())
    assert {bar["met"] for bar in told["bars"]} <= {"of another kernel", "not measured"}
    assert {run["commit"] for cell in told["matrix"] for run in cell["runs"]} == {"unknown"}


def test_the_committed_summary_is_what_the_report_makes_of_the_committed_results() -> None:
    """When the kernel changes the results show nothing of it, and the page has to say so: `make prove-report`."""
    folder = provenance.ROOT / "docs/proof"
    found = read((folder / "results.json").read_text("utf-8"), "results.json", kernel())
    fresh, committed = markdown(Summary.of(*found, kernel())), (folder / "summary.md").read_text("utf-8")
    hashes = re.compile(r"(today's, )[0-9a-f]{12}")
    assert hashes.sub(r"\1", committed) == hashes.sub(r"\1", fresh)
