"""The command line without a broker: help, usage, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from brew.cli import exit_code_of
from brew.names import ExitCode
from downstream.__main__ import downstream
from proof import commands
from proof.__main__ import COMMANDS, proof


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help costs no broker and shows how to call."""
    assert exit_code_of(proof, "proof", [command, "--help"]) == ExitCode.DONE
    assert f"python -m proof {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["seed", "--count", "many"],
        ["seed"],
        ["seed", "--count", "5", "--markers-only-partition", "1"],
        ["seed", "--count", "5", "--topic", "no/name"],
        ["seed", "--count", "5", "--abort-every", "1"],
        ["topics", "--partitions", "0"],
        ["verify", "--nonsense"],
        ["nothing"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_64_with_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before any broker is asked."""
    assert exit_code_of(proof, "proof", arguments) == ExitCode.USAGE
    assert capsys.readouterr().err.strip()


def test_wrong_usage_of_downstream_exits_64_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Both programs tell usage from refusal."""
    assert exit_code_of(downstream, "downstream", ["count", "--isolation", "maybe"]) == ExitCode.USAGE
    assert "read_committed" in capsys.readouterr().err


def test_who_asked_for_json_is_refused_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, one object: whoever parses stdout never takes a refusal for an answer."""
    monkeypatch.setattr(commands, "REACH_S", 0.3)
    assert exit_code_of(proof, "proof", ["verify", "--bootstrap", "localhost:1", "--json"]) == ExitCode.REFUSED
    refused = capsys.readouterr()
    told = json.loads(refused.err)
    assert (refused.out, "localhost:1" in told["error"]) == ("", True)
    assert told["next"] == "start one with `make up`, or point BOOTSTRAP (--bootstrap) at yours"
    assert exit_code_of(proof, "proof", ["verify", "--nonsense", "--json"]) == ExitCode.USAGE
    told = json.loads(capsys.readouterr().err)
    assert ("--nonsense" in told["error"], told["next"]) == (True, "see --help")


def test_an_unreachable_broker_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit code 3."""
    monkeypatch.setattr(commands, "REACH_S", 0.3)
    assert exit_code_of(proof, "proof", ["verify", "--bootstrap", "localhost:1"]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "localhost:1" in told
    assert "make up" in told
    assert len(told.strip().splitlines()) == 1


def test_the_modules_run_as_programs() -> None:
    """`python -m proof nonsense` ends with 64 and no stack trace."""
    for module in ("proof", "downstream"):
        ended = subprocess.run([sys.executable, "-m", module, "nonsense"], capture_output=True, text=True, check=False)
        assert ended.returncode == ExitCode.USAGE
        assert "Traceback" not in ended.stderr
