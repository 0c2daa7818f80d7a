"""The command, its files in and out, refusals, and the picture with a browser that is none."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness.campaigns import campaign

from brew.cli import exit_code_of
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.names import ExitCode
from proof.__main__ import proof
from proof.commands.report import picture
from proof.provenance import kernel
from proof.report.results import read

ROOT = Path(__file__).resolve().parents[3]
CELL = {"cell": "F01-c", "row": "F01", "seed": 1, "verdict": "proven"}


def _browser(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Puts a `chromium` on PATH that runs ``body``, and nothing else."""
    program = folder / "chromium"
    program.write_text(f"#!{sys.executable}\nimport signal, sys\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_lines_and_a_whole_campaign_give_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """results.json and results.jsonl, one file or several; the JSON twin is told on standard output."""
    whole = campaign()
    half = len(whole["cells"]) // 2
    parts = [whole["cells"][:half], whole["cells"][half:]]
    (tmp_path / "all.json").write_text(json.dumps(whole))
    for name, cells in zip(("a.jsonl", "b.jsonl"), parts, strict=True):
        (tmp_path / name).write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    told = []
    for names in (["all.json"], ["a.jsonl", "b.jsonl"]):
        files = [str(tmp_path / name) for name in names]
        out = tmp_path / "new" / "report.html"
        assert exit_code_of(proof, "proof", ["report", *files, "--out", str(out), "--json"]) == ExitCode.DONE
        told.append(json.loads(capsys.readouterr().out) | {"campaigns": None})
        assert out.read_text().startswith("<!DOCTYPE html>")
    assert told[0] == told[1]
    assert told[0]["verdict"] == "violated"


def test_the_command_says_what_it_found_and_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict, bars, files."""
    results, out, summary = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.md"
    results.write_bytes(json.dumps(campaign(1, broken=False, kernel=kernel())).encode() + b"\n")
    code = exit_code_of(proof, "proof", ["report", str(results), "--out", str(out), "--summary-md", str(summary)])
    told = capsys.readouterr().out
    assert code == ExitCode.DONE
    assert told.startswith("Proven: of 86 cells")
    assert f"wrote {summary}" in told
    assert summary.read_text().startswith("**Proven: of 86 cells")


def test_bytes_that_are_no_text_are_shown_not_refused(tmp_path: Path) -> None:
    """A record's bytes may have come into the evidence as they are."""
    results, out = tmp_path / "r.jsonl", tmp_path / "r.html"
    results.write_bytes(json.dumps(CELL | {"note": "X"}).encode().replace(b"X", b"\xff\xfe"))
    assert exit_code_of(proof, "proof", ["report", str(results), "--out", str(out)]) == ExitCode.DONE
    assert r"\udcff\udcfe" in out.read_text("utf-8")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"verdict": "maybe"}, "r.jsonl line 2: 'verdict' is 'maybe', it must be one of proven, violated"),
        ({"verdict": []}, "'verdict' is []"),
        ({"seed": "1"}, "'seed' is '1', it must be an integer"),
        ({"seed": None}, "'seed' is None"),
        ({"cell": ""}, "'cell' is ''"),
        ({"row": 1}, "'row' is 1, it must be a text"),
        ({"recovery_s": [-1]}, "'recovery_s' is [-1]"),
        ({"recovery_s": [float("nan")]}, "'recovery_s' is [nan]"),
        ({"stall_s": 3}, "'stall_s' is 3, it must be a list"),
        ({"bound_s": True}, "'bound_s' is True"),
        ({"fired": {"kills": "3"}}, "it must be an object of counts"),
        ({"counts": []}, "'counts' is [], it must be an object"),
        ({"anomalies": ["x"]}, "r.jsonl line 2 anomaly is not a JSON object"),
        ({"anomalies": [{}]}, "'name' is missing"),
    ],
)
def test_a_result_that_is_none_is_refused_with_its_place(fields: dict[str, Any], told: str) -> None:
    """File, line, field, what it must be, and what to do."""
    lines = "\n".join(map(json.dumps, (CELL, CELL | fields)))
    with pytest.raises(Refused) as refused:
        read(lines, "r.jsonl")
    assert told in str(refused.value)
    assert "run the cell again" in str(refused.value)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_holds_no_result(text: str) -> None:
    """A campaign that has just begun."""
    assert read(text, "r.jsonl") == ([], [])


@pytest.mark.parametrize("text", ["{", json.dumps(CELL) + '\n{"cell": "F0', "[1]", "7"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    """Also the last line of a campaign that was killed while it wrote."""
    with pytest.raises(Refused, match=r"r line \d"):
        read(text, "r")


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the place, and what to do."""
    (tmp_path / "r.jsonl").write_text(json.dumps(CELL))
    out = tmp_path / "r.jsonl" / "r.html"
    assert exit_code_of(proof, "proof", ["report", str(tmp_path / "r.jsonl"), "--out", str(out)]) == ExitCode.REFUSED
    assert "name a place that can be" in capsys.readouterr().err


def test_without_a_browser_a_picture_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what to install; nothing else needs it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="apt-get install chromium"):
        picture(tmp_path / "r.html", tmp_path / "r.png", Deadline(5))


def test_the_browser_is_given_page_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of its own, which is gone afterwards."""
    into = tmp_path / "r.png"
    _browser(tmp_path, monkeypatch, f"open({str(into)!r}, 'w').write('\\n'.join(sys.argv[1:]))")
    picture(tmp_path / "r.html", into, Deadline(10))
    told = into.read_text().splitlines()
    assert told[-1] == (tmp_path / "r.html").as_uri()
    profile = next(one.partition("=")[2] for one in told if one.startswith("--user-data-dir="))
    assert not os.path.exists(profile)  # noqa: PTH110 - a text that the program was told


@pytest.mark.parametrize(
    ("body", "budget_s", "error"),
    [
        ("sys.exit('no display')", 10, Refused),
        ("pass", 10, Refused),
        ("signal.alarm(60); signal.pause()", 0.3, DeadlineExceeded),
    ],
)
def test_a_browser_that_takes_no_picture_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, budget_s: float, error: type[Exception]
) -> None:
    """An older picture does not pass for a new one."""
    into = tmp_path / "r.png"
    into.write_text("old")
    _browser(tmp_path, monkeypatch, body)
    with pytest.raises(error, match="chromium"):
        picture(tmp_path / "r.html", into, Deadline(budget_s))
    assert not into.exists()


def test_an_installed_package_has_the_pages_files() -> None:
    """Every file beside the modules is named as package data, so that a wheel holds it."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    beside = {file for file in (ROOT / "proof/report").iterdir() if file.is_file() and file.suffix != ".py"}
    assert {file.suffix for file in beside} == {".css", ".html", ".js"}
    assert {file for pattern in patterns for file in (ROOT / "proof/report").glob(pattern)} == beside
