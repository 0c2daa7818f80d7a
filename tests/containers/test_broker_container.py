"""A broker in a container, by testcontainers: a run crashes on it, it is killed under another run, all is proven."""

from __future__ import annotations

import pytest
from harness.containers import KafkaContainer, NoEngineError
from harness.pipeline import READERS, Stage, until
from harness.servers import Names, any_broker


@pytest.mark.parametrize("reader", READERS)
def test_a_run_that_crashes_on_it_is_repeated_exactly_once(stage: Stage, reader: str) -> None:
    """Die before the commit, with exit code 2; the next run does all of it, and the checker compares each record."""
    stage.crash_and_heal("--reader", reader)


def test_the_container_is_killed_under_a_run(stage: Stage, kafka: KafkaContainer) -> None:
    """SIGKILL to the broker's container while transactions run; it comes back with its files and the run goes on."""
    stage.create(orders=4000)
    options = ("--master", "none", "--max-records-per-transaction", "50", "--progress", "json", "--follow")
    with stage.follow(*options) as program:
        program.await_cycle()
        kafka.kill()
        kafka.again()
        stage.seed(100, "--seed", "7")
        until(lambda: stage.outputs() == 4100, "the rest of the orders", 120)
        program.terminate()
        ran = program.wait(30)
    assert ran.code == 0, ran.text
    assert "brokers-away" in ran.text
    stage.proven(inputs=4100, outputs=4100)


def test_the_suites_own_broker_can_be_a_container(
    command_line: str, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With BREW_TEST_CONTAINERS=1 every test gets one; `cluster` is empty, so nobody breaks it from outside."""
    assert command_line
    monkeypatch.delenv("KAFKA_BOOTSTRAP", raising=False)
    monkeypatch.setenv("BREW_TEST_CONTAINERS", "1")
    with any_broker() as broker:
        assert broker.cluster is None
        stage = Stage(broker, names)
        stage.create(orders=30)
        stage.drain_locally()
        stage.proven(inputs=30, outputs=30)


def test_without_an_engine_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked for containers never gets the sandbox in silence."""
    monkeypatch.setenv("BREW_TEST_CONTAINERS", "1")
    monkeypatch.delenv("KAFKA_BOOTSTRAP", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoEngineError, match=r"scripts/setup-packages\.sh containers"), any_broker():
        pass
