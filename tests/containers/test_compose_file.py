"""`docker-compose.yml` as it stands: up, the crash story, down."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest
import yaml
from harness.pipeline import READERS, ROOT, Stage, until
from harness.servers import Broker, Names

from sandbox.process import free

FILE = ROOT / "docker-compose.yml"
BROKER = yaml.safe_load(FILE.read_text())["services"]["kafka"]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.fixture
def composed(command_line: str) -> Iterator[Broker]:
    """Up with a project name and a port of this test's own; down whatever happens, and gone."""
    compose = ["podman-compose"] if command_line == "podman" else ["docker", "compose"]
    assert shutil.which(compose[0]), "install it with `scripts/setup-packages.sh containers`"
    project, port = f"brew-{uuid.uuid4().hex[:8]}", str(free(1)[0])
    words = [*compose, "--project-name", project, "--file", str(FILE)]
    try:
        up = run(*words, "up", "--detach", KAFKA_PORT=port)
        assert up.returncode == 0, up.stderr
        names = run(command_line, "ps", "--filter", f"name={project}", "--format", "{{.Names}}").stdout.split()
        assert len(names) == 1, names
        # Docker asks by itself; Podman has no timer where there is no systemd.
        check = [word.replace("${KAFKA_PORT:-9092}", port) for word in BROKER["healthcheck"]["test"][1:]]
        until(lambda: run(command_line, "exec", names[0], *check).returncode == 0, "the health check", 90)
        yield Broker(f"localhost:{port}")
    finally:
        down = run(*words, "down", KAFKA_PORT=port)
        run(command_line, "network", "rm", f"{project}_default")  # podman-compose leaves it behind
    assert down.returncode == 0, down.stderr
    assert run(command_line, "ps", "--all", "--filter", f"name={project}", "--format", "{{.Names}}").stdout == ""


@pytest.mark.parametrize("reader", READERS)
def test_the_crash_story_on_the_composed_broker(composed: Broker, names: Names, reader: str) -> None:
    """30 orders, a crash before the commit with nothing to see, a second run, 30 orders once, proven."""
    Stage(composed, names).crash_and_heal("--reader", reader, orders=30)
