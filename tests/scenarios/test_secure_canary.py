"""A password that is planted, and looked for wherever a program leaves words: it is nowhere, and would be found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from harness.campaigns import campaign
from harness.canary import CANARY, leaking_files, leaks
from harness.live import get
from harness.probed import PAGES, Probed
from harness.programs import Running, call_program, until
from harness.secure import ASK_S, OPERATOR, PIPELINE, Secure, SecureStage
from harness.servers import Names
from harness.spark_events import event_log, files, read_by_spark

from brew.connection import CLIENT_CONFIG, SCRAM, Secret
from brew.deadline import Deadline
from brew.kafka import cluster_admin
from brew.names import ExitCode
from brew.offsets import SourcePosition
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from proof.__main__ import proof
from sandbox.process import write_private

VARIABLE = "BREW_TEST_CANARY"


@pytest.fixture
def stage(secure: Secure, names: Names) -> Iterator[SecureStage]:
    made = SecureStage(secure.broker, names, secure)
    made.create(2, output=2, dead_letter=2)
    made.grant_all()
    old = secure.security.passwords()[PIPELINE]
    cluster_admin.set_passwords(secure.admin, {PIPELINE: Secret(CANARY)}, SCRAM, Deadline(ASK_S))
    yield made
    cluster_admin.set_passwords(secure.admin, {PIPELINE: old}, SCRAM, Deadline(ASK_S))
    made.no_process_left()


def _config(stage: SecureStage, folder: Path, password: str) -> Path:
    text = stage.secure.security.config(PIPELINE).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("sasl.password=")]
    text = "\n".join([*lines, f"sasl.password={password}", ""])
    path = folder / "client.properties"
    write_private(path, text.replace("ca.pem", str(stage.secure.security.folder / "ca.pem")).encode())
    return path


def _command_lines_and_environments(program: Running) -> tuple[list[str], dict[int, str]]:
    """Command lines, and the environment that each process was started with."""
    lines, environments = [], {}
    for member in program.process_tree():
        with contextlib.suppress(psutil.Error, OSError):
            lines.append(" ".join(member.cmdline()))
            environments[member.pid] = Path(f"/proc/{member.pid}/environ").read_text(errors="replace")
    return lines, environments


@pytest.mark.usefixtures("quick_jvms")
@pytest.mark.parametrize(
    ("comes_from", "master", "reader"),
    [("file", "none", "connector"), ("file", "local[2]", "direct"), ("environment", "local[2]", "connector")],
)
def test_a_planted_password_is_in_no_word_that_a_run_leaves(
    stage: SecureStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_from: str, master: str, reader: str
) -> None:
    """
    Spark at its most talkative, its event log, probes, spans, journals, the client's own log, a crash report.

    With the connector Spark's source logs in with it (Java's consumer, in a JAAS text), which its event log tells.
    """
    secret, traces = tmp_path / "secret", tmp_path / "left"
    for folder in (secret, traces, traces / "events", traces / "spark"):
        folder.mkdir()
    config = _config(stage, secret, CANARY if comes_from == "file" else f"${{env:{VARIABLE}}}")
    if comes_from == "environment":
        monkeypatch.setenv(VARIABLE, CANARY)
    monkeypatch.setenv("BREW_CLIENT_LOG", "1")
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    with stage.acting_as("admin"):
        stage.seed(40, "--bad-every", "5")
    options = ("--client-config", str(config), "--verbose", "--journal", str(traces / "journal"), "--follow")
    conf = (*event_log(traces / "events"), "--conf", f"spark.local.dir={traces / 'spark'}")
    watched = ("--reader", reader, "--probe-port", "0", "--spans", "console")
    with stage.follow("--master", master, *watched, *options, *conf) as program:
        program.await_cycle()
        _check_pages(Probed(program), stage)
        lines, environments = _command_lines_and_environments(program)
        if master != "none":
            assert len(lines) >= 3, "the driver, its JVM and a worker"
            assert any("java" in line for line in lines)
        assert leaks(*lines) == []
        pids = {pid for pid, text in environments.items() if leaks(text)}
        assert pids == ({program.pid} if comes_from == "environment" else set())
        program.await_line(lambda line: '"name": "transact ' in line)
        os.kill(program.pid, signal.SIGABRT)  # Python's crash report: the stacks of all threads
        crashed = program.wait(30)
    stage.no_process_left()  # the JVM tidies up behind its driver, and may write a last word
    assert "Fatal Python error: Aborted" in crashed.text
    assert leaks(crashed.text) == []
    assert bool(files(traces / "events")) is (master != "none"), "there is an event log to look into"
    by_spark = (master, reader) == ("local[2]", "connector")
    assert (read_by_spark(traces / "events") is not None) is by_spark
    assert list((traces / "journal").iterdir())
    assert leaking_files(traces) == []

    (traces / "events" / "control").write_text(f"x{CANARY}x")
    assert leaking_files(traces) == [traces / "events" / "control"], "the check of the check"
    assert leaking_files(secret) == ([config] if comes_from == "file" else [])


def _check_pages(probed: Probed, stage: SecureStage) -> None:
    """Each page answers, says what only somebody who was let in can know, and nothing of the password."""
    probed.until(lambda status: status.totals.records == 40, "all is worked on")
    for page in PAGES:
        code, body = probed.ask(page)
        assert (code, leaks(body.decode())) == (200, []), page
    producers = json.loads(probed.ask("/status?producers")[1])
    assert stage.names.input in json.dumps(producers)


def test_a_planted_password_is_in_no_refusal(stage: SecureStage, tmp_path: Path) -> None:
    """Every way to be refused, each with its exit code."""
    (tmp_path / "secret").mkdir()
    config = _config(stage, tmp_path / "secret", CANARY)
    run = ("run", *stage.options(), "--master", "none", "--patience", "1")
    client_config = ("--client-config", str(config))

    def refused(code: ExitCode, *more: str) -> str:
        exit_code, output = stage.run_as(pipeline, *run, *more, user=PIPELINE)
        assert (exit_code, leaks(output)) == (code, []), output
        return output

    assert "_AUTHENTICATION" in refused(ExitCode.REFUSED), "the old password"
    wrong = ("--client-config", str(_config(stage, tmp_path / "secret", f"{CANARY}-or-nearly")))
    assert "_AUTHENTICATION" in refused(ExitCode.REFUSED, *wrong)
    for command, *words in _operator_commands(stage):
        exit_code, output = stage.run_as(pipeline, command, *words, "--json", *wrong, user=PIPELINE)
        assert (exit_code, leaks(output)) == (ExitCode.REFUSED, []), output
        assert "_AUTHENTICATION" in json.loads(output)["error"]
    config = _config(stage, tmp_path / "secret", CANARY)
    config.write_text(config.read_text() + f"isolation.level={CANARY}\nunknown={CANARY}\n")
    assert "isolation.level=***" in refused(ExitCode.USAGE, *client_config)
    config = _config(stage, tmp_path / "secret", f"{CANARY}\n{CANARY}")
    refused(ExitCode.USAGE, *client_config)
    config = _config(stage, tmp_path / "secret", CANARY)
    config.chmod(0o644)
    assert "chmod" in refused(ExitCode.REFUSED, *client_config)
    assert CLIENT_CONFIG not in os.environ


def test_a_planted_password_is_on_no_page_that_an_operator_looks_at(stage: SecureStage, tmp_path: Path) -> None:
    """Each command logs in with it and ends as it should, so its words are there to be looked at."""
    (tmp_path / "secret").mkdir()
    stage.secure.grant(PIPELINE, *(replace(right, user=PIPELINE) for right in stage.rights(OPERATOR)))
    client_config = ("--client-config", str(_config(stage, tmp_path / "secret", CANARY)))
    with stage.acting_as("admin"):
        stage.seed(10, "--bad-every", "5")
    names, bootstrap = stage.names, ("--bootstrap", stage.broker.bootstrap)
    options = stage.options()
    group_options = (*bootstrap, "--input", names.input, "--output", names.output, "--group", names.group)
    page, picture = tmp_path / "left.html", tmp_path / "left.svg"
    dead_letters = (*bootstrap, "--dead-letter", names.dead_letter)
    commands = [
        (pipeline, "run", *options, "--master", "none", "--progress", "none"),
        *((pipeline, *words) for words in _operator_commands(stage)),
        (pipeline, "xray", *group_options),
        (pipeline, "xray", *group_options, "--out", str(page)),
        (pipeline, "xray", *group_options, "--out", str(picture)),
        (pipeline, "dlq", "list", *dead_letters),
        (pipeline, "dlq", "inspect", *dead_letters, "--input", names.input, "--source", "{rejected}"),
        (pipeline, "top", "--once", *options),
        (pipeline, "submit", "--dry-run", *options),
        (proof, "verify", *options),
        (proof, "end-offsets", *bootstrap, "--topic", names.output),
        (proof, "group-describe", *bootstrap, "--group", names.group, "--topic", names.input),
        (downstream, "count", *bootstrap, "--topic", names.output),
    ]
    texts = []
    for program, *words in commands:
        for more in ((), ("--json",)) if words[0] not in {"run", "submit"} and "--out" not in words else ((),):
            filled = [word.format(rejected=_rejected(stage)) if word == "{rejected}" else word for word in words]
            code, output = stage.run_as(program, *filled, *more, *client_config, user="nobody")
            assert (code, leaks(output)) == (ExitCode.DONE, []), f"{words}: {output}"
            assert output.strip(), words
            texts.append(output)
    assert names.output in page.read_text()
    assert "<svg" in picture.read_text()
    _reported(tmp_path / "report", texts, names.output)
    assert leaking_files(tmp_path) == [tmp_path / "secret" / "client.properties"]

    with stage.python("pipeline", "ui", *options, "--port", "0", *client_config) as program:
        line = program.await_line(lambda line: line.startswith("live view at http://127.0.0.1:"))
        port = int(line.rstrip("/\n").rpartition(":")[2])
        until(lambda: _positions(port) == set(stage.committed().values()), "the positions, which brokers told")
        texts = [get(port, path)[2] for path in ("/", "/view.json", "/page.js", "/page.css")]
        program.terminate()
        texts.append(program.wait(20).text)
    assert leaks(*texts) == []


def _operator_commands(stage: SecureStage) -> list[tuple[str, ...]]:
    """What an operator, or his programs with `--json`, ask first."""
    bootstrap, names = ("--bootstrap", stage.broker.bootstrap), stage.names
    return [
        ("preflight", *stage.options(), "--master", "none"),
        ("lag", *bootstrap, "--input", names.input, "--group", names.group, "--interval", "0.1"),
        ("explain", f"{names.input}/0/0", *stage.options()),
        ("doctor", *bootstrap, "--topic", names.output),
    ]


def _rejected(stage: SecureStage) -> str:
    source = SourcePosition.of(stage.records(stage.names.dead_letter)[0].headers())
    assert source is not None
    return f"{source.partition}/{source.offset}"


def _reported(folder: Path, texts: Sequence[str], topic: str) -> None:
    """A campaign whose evidence is all that programs said: its page, its summary and its JSON show it, and no more."""
    results = campaign(1, broken=False)
    anomalies = [{"name": "unnamed-refusal", "evidence": text} for text in texts]
    results["cells"][0] |= {"verdict": "violated", "anomalies": anomalies, "note": texts[-1]}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))
    page, summary = folder / "report.html", folder / "summary.md"
    words = ("report", str(folder / "results.json"), "--out", str(page), "--summary-md", str(summary), "--json")
    code, out, err = call_program(proof, "proof", *words)
    assert code == ExitCode.DONE, err
    assert topic in page.read_text()
    assert leaks(out, page.read_text(), summary.read_text()) == []


def _positions(port: int) -> set[int | None]:
    return {partition["position"] for partition in json.loads(get(port, "/view.json")[2])["partitions"]}
