"""A password that is planted, and looked for wherever a program leaves words: it is nowhere, and would be found."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.names import Names
from harness.programs import Running
from harness.secure import ASK_S, Secure
from harness.secure_stage import PIPELINE, SecureStage

from pipeline.__main__ import cli as pipeline
from protocol.connection import CLIENT_CONFIG
from protocol.deadline import Deadline
from protocol.kafka import access
from protocol.names import ExitCode
from protocol.properties import SCRAM
from protocol.secrets import Secret
from sandbox.private import write_private

CANARY = 'canary-"\\-5e1f09c7d2'
PARTS = ("canary-", "5e1f09c7d2")
"""What is looked for: escaping may come between."""
VARIABLE = "BREW_TEST_CANARY"


@pytest.fixture
def stage(secure: Secure, names: Names) -> Iterator[SecureStage]:
    made = SecureStage(secure.broker, names, secure)
    made.create(2, output=2, dead_letter=2)
    made.grant_all()
    old = secure.security.passwords()[PIPELINE]
    access.set_passwords(secure.admin, {PIPELINE: Secret(CANARY)}, SCRAM, Deadline(ASK_S))
    yield made
    access.set_passwords(secure.admin, {PIPELINE: old}, SCRAM, Deadline(ASK_S))
    made.nobody_left()


def _config(stage: SecureStage, folder: Path, password: str) -> Path:
    text = stage.secure.security.config(PIPELINE).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("sasl.password=")]
    text = "\n".join([*lines, f"sasl.password={password}", ""])
    path = folder / "client.properties"
    write_private(path, text.replace("ca.pem", str(stage.secure.security.folder / "ca.pem")).encode())
    return path


def _found(*texts: str) -> list[str]:
    return [part for part in PARTS for text in texts if part in text]


def _in_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and _found(file.read_bytes().decode("latin-1"))]


def _family(program: Running) -> tuple[list[str], dict[int, str]]:
    """Command lines, and the environment that each process was started with."""
    lines, environments = [], {}
    for member in program.family():
        with contextlib.suppress(psutil.Error, OSError):
            lines.append(" ".join(member.cmdline()))
            environments[member.pid] = Path(f"/proc/{member.pid}/environ").read_text(errors="replace")
    return lines, environments


@pytest.mark.usefixtures("quick_jvms")
@pytest.mark.parametrize(("comes_from", "master"), [("file", "none"), ("environment", "local[2]")])
def test_a_planted_password_is_in_no_word_that_a_run_leaves(
    stage: SecureStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_from: str, master: str
) -> None:
    """Spark at its most talkative, its event log, journals, the client's own log, a crash report, the processes."""
    secret, left = tmp_path / "secret", tmp_path / "left"
    for folder in (secret, left, left / "events", left / "spark"):
        folder.mkdir()
    config = _config(stage, secret, CANARY if comes_from == "file" else f"${{env:{VARIABLE}}}")
    if comes_from == "environment":
        monkeypatch.setenv(VARIABLE, CANARY)
    monkeypatch.setenv("BREW_CLIENT_LOG", "1")
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    with stage.acting("admin"):
        stage.seed(40, "--bad-every", "5")
    options = ("--client-config", str(config), "--verbose", "--journal", str(left / "journal"), "--follow")
    conf = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={left / 'events'}")
    with stage.follow("--master", master, *options, *conf, "--conf", f"spark.local.dir={left / 'spark'}") as program:
        program.await_cycle()
        lines, environments = _family(program)
        if master != "none":
            assert len(lines) >= 3, "the driver, its JVM and a worker"
            assert any("java" in line for line in lines)
        assert _found(*lines) == []
        with_it = {pid for pid, text in environments.items() if _found(text)}
        assert with_it == ({program.pid} if comes_from == "environment" else set())
        os.kill(program.pid, signal.SIGABRT)  # Python's crash report: the stacks of all threads
        crashed = program.wait(30)
    stage.nobody_left()  # the JVM tidies up behind its driver, and may write a last word
    assert "Fatal Python error: Aborted" in crashed.text
    assert _found(crashed.text) == []
    assert bool(list((left / "events").rglob("*"))) is (master != "none"), "there is an event log to look into"
    assert list((left / "journal").iterdir())
    assert _in_files(left) == []

    (left / "events" / "control").write_text(f"x{CANARY}x")
    assert _in_files(left) == [left / "events" / "control"], "the check of the check"
    assert _in_files(secret) == ([config] if comes_from == "file" else [])


def test_a_planted_password_is_in_no_refusal_and_on_no_page(stage: SecureStage, tmp_path: Path) -> None:
    """Every way to be refused, and the page that an operator draws."""
    (tmp_path / "secret").mkdir()
    config = _config(stage, tmp_path / "secret", CANARY)
    run = ("run", *stage.options(), "--master", "none", "--patience", "1")
    said = [stage.here(pipeline, *run, user=PIPELINE)[1]]  # the old password
    page = tmp_path / "left.html"
    xray = ("xray", "--bootstrap", stage.broker.bootstrap, "--topic", stage.names.input, "--out", str(page))
    doctor = ("doctor", "--bootstrap", stage.broker.bootstrap, "--json")
    mine = ("--client-config", str(config))
    said += [stage.here(pipeline, *words, *mine, user=PIPELINE)[1] for words in (run, xray, doctor)]
    config.write_text(config.read_text() + f"isolation.level={CANARY}\nunknown={CANARY}\n")
    code, text = stage.here(pipeline, *run, *mine, user=PIPELINE)
    assert (code, "isolation.level=***" in text) == (ExitCode.USAGE, True), text
    config.write_text(_config(stage, tmp_path / "secret", CANARY).read_text() + f"{CANARY}\n")
    said += [text, stage.here(pipeline, *run, *mine, user=PIPELINE)[1]]
    config.chmod(0o644)
    said.append(stage.here(pipeline, *run, *mine, user=PIPELINE)[1])
    assert all(said)
    assert _found(*said, page.read_text() if page.exists() else "") == []
    assert CLIENT_CONFIG not in os.environ
