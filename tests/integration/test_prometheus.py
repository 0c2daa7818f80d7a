"""What we ship for Prometheus, loaded into the real one: rules, their tests, metrics, and every panel's query."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.pipeline import Stage
from harness.probed import Probed
from harness.programs import ROOT, Running, until

from sandbox.process import free

ALERTS = ROOT / "deploy/alerts"
RULES, TESTS = ALERTS / "brew.rules.yaml", ALERTS / "tests/brew.test.yaml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/brew.json").read_text())
QUIET_AT_FIRST = {"Last recovery", "Redelivered records"}
"""Panels that have nothing to show of a run that has just begun and was never in trouble, or of receivers alone."""
ASK_S = 10
TOOL_S = 60


def tool(name: str) -> str:
    """Where it is; tests fail without it, and are not skipped."""
    path = shutil.which(name)
    assert path is not None, f"{name} is missing; scripts/setup-packages.sh metrics installs it (make test does)"
    return path


def promtool(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [tool("promtool"), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=TOOL_S)


def test_prometheus_takes_the_rules_and_each_fires_when_it_should_and_only_then() -> None:
    """Texts and labels of every alert included."""
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked
    tested = promtool("test", "rules", TESTS)
    assert tested.returncode == 0, tested.stdout.decode()


@pytest.mark.parametrize("alert", [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]])
def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    """Not firing is shown by a series beside the one that fires, or by an earlier time."""
    tests = [case for case in yaml.safe_load(TESTS.read_text())["tests"] if alert in str(case["alert_rule_test"])]
    cases = [case for test in tests for case in test["alert_rule_test"] if case["alertname"] == alert]
    assert any(case["exp_alerts"] for case in cases)
    most_firing = max(len(case["exp_alerts"]) for case in cases)
    most_series = max(len(test["input_series"]) for test in tests)
    assert most_series > most_firing or any(not case["exp_alerts"] for case in cases)


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ('state=~"stuck|unrecoverable"', 'state="stuck"', "orders[1]"),
        ("for: 15m", "for: 1m", "BrewPartitionBlocked"),
        ("> 10000", "> 10", "is-near"),
    ],
)
def test_a_rule_that_was_changed_by_mistake_is_seen(tmp_path: Path, right: str, wrong: str, expected: str) -> None:
    text = RULES.read_text()
    assert right in text
    (tmp_path / RULES.name).write_text(text.replace(right, wrong, 1))
    (tmp_path / "tests").mkdir()
    shutil.copy(TESTS, tmp_path / "tests")
    tested = promtool("test", "rules", tmp_path / "tests" / TESTS.name)
    assert tested.returncode == 1
    assert expected in (tested.stdout + tested.stderr).decode()


@dataclass
class Prometheus:
    """A real one, on a port of its own."""

    url: str
    program: Running

    def ask(self, page: str, **query: str) -> Any:
        parameters = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{self.url}/api/v1/{page}?{parameters}", timeout=ASK_S) as reply:
            return json.load(reply)["data"]

    def answers(self) -> bool:
        assert self.program.alive(), self.program.output()
        with contextlib.suppress(OSError):
            return bool(self.ask("targets")["activeTargets"])
        return False

    def series(self, expression: str) -> list[dict[str, Any]]:
        """What an expression finds now."""
        result: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return result


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Scrapes ``target`` once a second, with our rules."""
    (port,) = free(1)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "brew", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [tool("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with Running(command, {}) as program:
        server = Prometheus(f"http://127.0.0.1:{port}", program)
        until(server.answers, "Prometheus answers")
        yield server
        program.terminate()
        assert program.wait(20).code == 0


def unanswered(server: Prometheus) -> set[str]:
    """The panels with a query that finds nothing now."""
    return {
        panel["title"]
        for panel in DASHBOARD["panels"]
        if not all(server.series(target["expr"].replace("$job", ".+")) for target in panel.get("targets", ()))
    }


def test_prometheus_reads_a_running_program_and_answers_every_panel(stage: Stage, tmp_path: Path) -> None:
    """No query fails, and of a run that worked none is empty but those that tell of trouble."""
    stage.create(2)
    follow = ("--master", "none", "--reader", "direct", "--follow", "--probe-port", "0")
    with stage.python("pipeline", "run", *stage.options(), *follow) as program:
        run = Probed(program)
        with prometheus(tmp_path, run.url().removeprefix("http://")) as server:
            until(lambda: server.series("brew_ready == 1"), "it is scraped")
            stage.seed(40, "--bad-every", "4")
            until(lambda: server.series("sum(brew_records_total) == 40"), "all records are counted")
            rising = "sum(increase(brew_records_total[1m])) > 0 and on () sum(increase(brew_dlq_total[1m])) > 0"
            until(lambda: server.series(rising), "two scrapes show a rate")
            until(lambda: unanswered(server) <= QUIET_AT_FIRST, "every panel is answered")
            for note in DASHBOARD["annotations"]["list"]:
                server.series(note["expr"].replace("$job", ".+"))
            assert [series["metric"]["job"] for series in server.series("brew_info")] == ["brew"]
            rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
            assert {rule["health"] for rule in rules} == {"ok"}
            assert {rule["name"]: rule["state"] for rule in rules if rule["state"] == "firing"} == {}
        checked = promtool("check", "metrics", stdin=run.ask("/metrics")[1])
        run.ends()
    assert (checked.returncode, checked.stderr + checked.stdout) == (0, b""), checked
