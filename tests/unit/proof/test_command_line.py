"""The command line without a broker: help, usage, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness.commands import PROGRAMS

from brew.cli import exit_code_of
from brew.names import ExitCode
from proof import commands
from proof.__main__ import proof
from proof.campaign.cell import Result
from proof.claims.members import Races
from proof.commands import campaign, claims, wire
from proof.commands.inspect import _table
from proof.wire import torn


@pytest.mark.parametrize(
    "words",
    [
        *("proof seed --count many", "proof seed", "proof seed --count 5 --markers-only-partition 1"),
        *("proof seed --count 5 --topic no/name", "proof seed --count 5 --abort-every 1"),
        *("proof topics --partitions 0", "proof verify --nonsense", "proof nothing"),
        *("proof verify --healed-at nan", "proof verify --healed-at 1e300", "proof verify --bound-s nan"),
        "downstream count --isolation maybe",
        *("proof verify --need outputs=\N{SUPERSCRIPT TWO}", "sandbox cut 1 --from \N{SUPERSCRIPT TWO}"),
    ],
)
def test_wrong_usage_exits_64_with_a_sentence(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = words.split()
    assert exit_code_of(PROGRAMS[name], name, arguments) == ExitCode.USAGE
    message = capsys.readouterr().err.strip()
    assert "read_committed" in message if name == "downstream" else message


def test_a_refusal_is_one_sentence_or_for_who_asked_for_json_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr: whoever parses stdout never takes a refusal for an answer. Both say what to do."""
    monkeypatch.setattr(commands, "REACH_S", 0.1)
    assert exit_code_of(proof, "proof", ["verify", "--bootstrap", "localhost:1", "--json"]) == ExitCode.REFUSED
    refused = capsys.readouterr()
    document = json.loads(refused.err)
    assert (refused.out, "localhost:1" in document["error"]) == ("", True)
    assert document["next"] == "start one with `make up`, or point BOOTSTRAP (--bootstrap) at yours"
    assert exit_code_of(proof, "proof", ["verify", "--nonsense", "--json"]) == ExitCode.USAGE
    document = json.loads(capsys.readouterr().err)
    assert ("--nonsense" in document["error"], document["next"]) == (True, "see --help")
    assert exit_code_of(proof, "proof", ["verify", "--bootstrap", "localhost:1"]) == ExitCode.REFUSED
    sentence = capsys.readouterr().err
    assert "localhost:1" in sentence
    assert "make up" in sentence
    assert len(sentence.strip().splitlines()) == 1


def test_verify_refuses_a_folder_without_journals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a mistyped name it compared nothing, and said `proven`."""
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "run.jsonl").touch()
    verify = ["verify", "--bootstrap", "localhost:1", "--journals", str(tmp_path)]
    assert exit_code_of(proof, "proof", verify) == ExitCode.USAGE
    message = " ".join(capsys.readouterr().err.split())
    assert f"--journals is {str(tmp_path)!r}, which has no journal (*.jsonl file)" in message
    assert "name the directory" in message


def test_verify_refuses_a_bound_without_a_time_to_count_from(capsys: pytest.CaptureFixture[str]) -> None:
    """No commit was compared with it, and it said `proven`."""
    assert exit_code_of(proof, "proof", ["verify", "--bootstrap", "localhost:1", "--bound-s", "5"]) == ExitCode.USAGE
    told = "--bound-s is set without --healed-at, so no commit would be timed; say when the fault ended"
    assert told in " ".join(capsys.readouterr().err.split())


def test_verify_refuses_files_to_search_without_a_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It searched for nothing, and said `proven`."""
    monkeypatch.delenv("BREW_CANARY", raising=False)
    assert exit_code_of(proof, "proof", ["verify", "--bootstrap", "localhost:1", "--artefact", "."]) == ExitCode.USAGE
    assert "--artefact is set without --canary (BREW_CANARY)" in capsys.readouterr().err


@pytest.mark.parametrize("writer", ["", "it's"])
def test_a_writer_that_is_no_command_is_refused(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An open quote ended in a stack trace, with the exit code of a violation."""
    monkeypatch.setattr(campaign, "run_campaign", lambda *_: [])
    words = ["campaign", "--cells", "F01-*", "--out", str(tmp_path), "--writer", writer]
    assert exit_code_of(proof, "proof", words) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("proof: --writer is ")


@pytest.mark.parametrize(
    ("results", "options", "code"),
    [
        ([], (), ExitCode.REFUSED),
        ([], ("--may-leave-out",), ExitCode.DONE),
        ([("proven", "proven")], (), ExitCode.DONE),
        ([("violated", "violated")], (), ExitCode.DONE),
        ([("violated", "proven")], (), ExitCode.VIOLATION),
        ([("proven", "violated")], (), ExitCode.VIOLATION),
        ([("inconclusive", "proven")], (), ExitCode.REFUSED),
        ([("inconclusive", "proven"), ("violated", "proven")], (), ExitCode.VIOLATION),
    ],
)
def test_a_campaigns_exit_code_is_that_of_its_worst_result(
    results: list[tuple[str, str]],
    options: tuple[str, ...],
    code: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control that breaks nothing is as bad as a violation, and a cell that was left out shows nothing."""
    about = ("F10-old-checkpoint", "F10", "", "", "", "", 1)
    done = [Result(*about, verdict, "", 0.0, None, expected=expected) for verdict, expected in results]
    monkeypatch.setattr(campaign, "run_campaign", lambda *_: done)
    words = ["campaign", "--cells", "F10-*", "--out", str(tmp_path), *options]
    assert exit_code_of(proof, "proof", words) == code


@pytest.mark.parametrize(
    ("reuse", "strict", "code"),
    [
        ((20, 0), (0, 0), ExitCode.DONE),
        ((18, 0), (0, 0), ExitCode.REFUSED),
        ((20, 0), (0, 1), ExitCode.REFUSED),
        ((20, 0), (1, 0), ExitCode.VIOLATION),
        ((18, 0), (1, 0), ExitCode.VIOLATION),
    ],
)
def test_torn_transactions_end_with_the_worse_of_both_writers(
    reuse: tuple[int, int], strict: tuple[int, int], code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 tries so many broken, and so many unclear; a control that holds is no proof of ours."""

    def experiment(_connection: object, writer: str, tries: int, _scripts: object, *, seed: int) -> torn.Result:
        broken, unclear = reuse if writer == "reuse" else strict
        tally = torn.Tally(tries, tries - broken - unclear, broken, unclear, Counter(), Counter(), [], [])
        return torn.Result(writer, tally, [], {}, [], float(seed))

    monkeypatch.setattr(wire, "connected", lambda _: None)
    monkeypatch.setattr(wire, "experiment", experiment)
    assert exit_code_of(proof, "proof", ["torn", "--tries", "20", "--json"]) == code


@pytest.mark.parametrize("findings", [[], ["partition 3 has 2 owners"]])
def test_races_with_a_finding_end_with_1(findings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    races = Races(1, 8, 64, owned_after_s=[0.1], findings=findings)
    monkeypatch.setattr(claims, "connected", lambda _: None)
    monkeypatch.setattr(claims, "race", lambda *_, **__: races)
    code = ExitCode.VIOLATION if findings else ExitCode.DONE
    assert exit_code_of(proof, "proof", ["claims-races", "--rounds", "1", "--json"]) == code


def test_numbers_are_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`end-offsets` cut off the digits of all offsets on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table = _table("", ["topic"], ["partition", "first", "LSO", "log end", "visible", "waiting", "aborted", "open"])
    table.add_row("brew.orders.enriched", *(["12345678"] * 8))
    commands.show(table)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "brew" in line]
    assert ("brew.orders.enriched" in row, row.count("12345678")) == (True, 8)


@pytest.mark.parametrize("module", ["proof", "downstream"])
def test_the_modules_run_as_programs(module: str) -> None:
    ended = subprocess.run([sys.executable, "-m", module, "nonsense"], capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.USAGE
    assert "Traceback" not in ended.stderr
