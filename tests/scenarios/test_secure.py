"""The crash story where everybody has to say who he is, each program with the least rights that the page lists."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import until
from harness.secure import DOWNSTREAM, PIPELINE, PROOF, Secure, SecureStage, secure_broker
from harness.servers import Names
from harness.spark_events import event_log, read_by_spark

from brew.client_config import load
from brew.connection import Connection, java_properties, java_settings
from brew.deadline import Deadline
from brew.kafka import topics
from brew.names import ExitCode
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from sandbox.jvm import Jvm
from sandbox.process import write_private

CRASH_LINE = re.compile(r"crash before commit: (\d+) records? already in output log")


@pytest.fixture
def stage(secure: Secure, names: Names) -> Iterator[SecureStage]:
    made = SecureStage(secure.broker, names, secure)
    made.create(2, output=2, dead_letter=2)
    made.grant_all()
    yield made
    made.no_process_left()


def _seed(stage: SecureStage, count: int) -> None:
    with stage.acting_as("admin"):
        stage.seed(count)


def _proven(stage: SecureStage, **expected: int) -> None:
    with stage.acting_as(PROOF):
        stage.proven(**expected)


def _counted(stage: SecureStage, isolation: str) -> int:
    words = ("count", "--bootstrap", stage.broker.bootstrap, "--topic", stage.names.output, "--json")
    code, output = stage.run_as(downstream, *words, "--isolation", isolation, user=DOWNSTREAM)
    assert code == ExitCode.DONE, output
    return int(json.loads(output)["records"])


def _with_a_certificate(stage: SecureStage, reader: str, folder: Path) -> None:
    """A run on Spark by mutual TLS: the certificate's name is the user, with that user's rights; it has no password."""
    layout, config = stage.secure.cluster.layout, stage.secure.security.config(PIPELINE, certificate=True)
    assert "sasl" not in config.read_text()
    options = [word.replace(layout.bootstrap, layout.bootstrap_mutual) for word in stage.options()]
    words = ("--master", "local[2]", "--reader", reader, "--client-config", str(config), *event_log(folder))
    with stage.python("pipeline", "run", *options, *words) as program:
        ran = program.wait(120)
    assert ran.code == ExitCode.DONE, ran.text


@pytest.mark.usefixtures("quick_jvms")
def test_the_crash_story_with_the_least_rights(stage: SecureStage, tmp_path: Path) -> None:
    """
    Spark's Java consumer reads with a password and the run dies; another one, with a certificate, reads by itself, and
    all is there once.
    """
    _seed(stage, 30)
    crash = stage.pipeline("--reader", "connector", "--crash-prob", "1.0", *event_log(tmp_path))
    assert crash.code == ExitCode.CRASHED_ON_PURPOSE, crash.text
    assert read_by_spark(tmp_path) is not None, "what it left was read by Spark's own source"
    match = CRASH_LINE.search(crash.out)
    assert match is not None, crash.text
    left = int(match[1])
    assert left > 0
    assert 1 <= len(stage.open_transactions()) <= 2, "the run ends with its first crash"
    assert (_counted(stage, "read_committed"), _counted(stage, "read_uncommitted")) == (0, left)

    (tmp_path / "healed").mkdir()
    _with_a_certificate(stage, "direct", tmp_path / "healed")
    assert read_by_spark(tmp_path / "healed") is None
    assert (_counted(stage, "read_committed"), _counted(stage, "read_uncommitted")) == (30, 30 + left)
    _proven(stage, inputs=30, outputs=30)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_the_other_ways_to_log_in_work_too(stage: SecureStage, mechanism: str, tmp_path: Path) -> None:
    text = stage.secure.security.config(PIPELINE).read_text().replace("SCRAM-SHA-512", mechanism)
    text = text.replace("ca.pem", str(stage.secure.security.folder / "ca.pem"))
    write_private(tmp_path / "c.properties", text.encode())
    words = ("--client-config", str(tmp_path / "c.properties"), "--master", "none", "--progress", "none")
    code, output = stage.run_as(pipeline, "run", *stage.options(), *words, user=PIPELINE)
    assert code == ExitCode.DONE, output


@pytest.mark.usefixtures("quick_jvms")
def test_a_certificate_lets_the_connector_in(stage: SecureStage, tmp_path: Path) -> None:
    """Spark's Java consumer, too; the direct reader is the crash story's."""
    _seed(stage, 10)
    _with_a_certificate(stage, "connector", tmp_path)
    assert read_by_spark(tmp_path) == 10
    _proven(stage, inputs=10)


def test_kafkas_own_tools_read_a_certificates_settings(stage: SecureStage, tmp_path: Path) -> None:
    layout, security = stage.secure.cluster.layout, stage.secure.security
    loaded = load(security.config(PIPELINE, certificate=True))
    java = java_settings(Connection("", loaded.properties, loaded.secrets))
    write_private(tmp_path / "java.properties", java_properties(java).encode())
    bootstrap = ["--bootstrap-server", layout.bootstrap_mutual, "--command-config", str(tmp_path / "java.properties")]
    with stage.start(Jvm().tool("kafka-topics", [*bootstrap, "--list"])) as program:
        ran = program.wait(30)
    assert stage.names.input in ran.out.split(), ran.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("sasl.password=", "sasl.password=wrong"), ("_AUTHENTICATION", "User:pipeline", "sasl.*")),
        (("sasl.username=pipeline", "sasl.username=nobody"), ("_AUTHENTICATION", "User:nobody", "sasl.*")),
        (("CA", "OTHER"), ("_SSL; ", "unable to get local issuer certificate", "ssl.*")),
    ],
)
def test_who_is_not_let_in_is_told_at_once(
    stage: SecureStage, tmp_path: Path, change: tuple[str, str], words: tuple[str, ...]
) -> None:
    from sandbox.certificates import Authority  # noqa: PLC0415

    Authority.fresh().write(tmp_path)
    authority = tmp_path if change[0] == "CA" else stage.secure.security.folder
    text = stage.secure.security.config(PIPELINE).read_text().replace("ca.pem", str(authority / "ca.pem"))
    write_private(tmp_path / "c.properties", text.replace(*change).encode())
    with stage.python("pipeline", "run", *stage.options(), "--master", "none", "--client-config",
                      str(tmp_path / "c.properties")) as program:  # fmt: skip
        ran = program.wait(30)  # a client that goes on trying needs 60 s
    assert ran.code == ExitCode.REFUSED, ran.text
    for word in (*words, str(tmp_path / "c.properties")):
        assert word in ran.err, ran.text


def test_a_right_that_is_taken_in_the_middle_ends_the_run_by_name(stage: SecureStage) -> None:
    """With the right again the next run goes on, and nothing is lost or there twice."""
    right = next(candidate for candidate in stage.rights(PIPELINE) if candidate.kind == "transactional-id")
    _seed(stage, 2000)
    command = ("pipeline", "run", *stage.options(), "--master", "none", "--follow", "--patience", "2",
               "--transaction-timeout", "10")  # fmt: skip
    with stage.python(*command, "--max-records-per-transaction", "100") as program:
        program.await_cycle()
        stage.secure.revoke(PIPELINE, right)
        _seed(stage, 200)
        ran = program.wait(30)
    assert ran.code == ExitCode.REFUSED, ran.text
    assert "User:pipeline lacks Write on transactional-id" in ran.err
    # Whoever may not use the id can't abort either: what was open then is the brokers' to end, by its time-out.
    until(lambda: stage.open_transactions() == [], "the end of what was open", 40)
    stage.secure.grant(PIPELINE, right)
    code, output = stage.run_as(pipeline, "run", *stage.options(), "--master", "none", user=PIPELINE)
    assert code == ExitCode.DONE, output
    _proven(stage, inputs=2200)


def test_nobody_else_may_open_what_a_secure_cluster_keeps(secure: Secure) -> None:
    files = [*secure.security.folder.rglob("*"), *secure.cluster.layout.directory.rglob("server.properties")]
    assert len(files) > 10
    open_to_all = [file for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077 and file.stat().st_size]
    assert open_to_all == []


def test_three_brokers_know_each_other_and_their_users(names: Names) -> None:
    with secure_broker(3) as secure:
        stage = SecureStage(secure.broker, names, secure)
        stage.create(3)
        stage.grant_all()
        with stage.acting_as("admin"):
            stage.seed(10)
        until(lambda: sum(log.end for log in stage.logs(names.input).values()) == 10, "the orders")
        described = topics.describe_one(stage.admin, names.input, Deadline(20))
        assert (described.replicas, described.partitions) == (3, 3)
