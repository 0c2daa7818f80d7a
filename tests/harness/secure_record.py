"""The outcome of a `--secure` session: tests passed, tests left out and why; printed at its end, saved in a file."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from proof import provenance

_SENT = "secure_left_out"


class Record:
    """
    A separate plugin in the process that started the session; workers report to it what they left out.

    With `--secure-record FILE`, entries for the test files of this session are replaced, others stay: the suite may be
    run in parts.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._out: dict[str, str] = {}
        self._files: dict[str, Counter[str]] = {}
        self._seconds: Counter[str] = Counter()
        config.pluginmanager.register(self, "secure-record")

    def left_out(self, tests: Mapping[str, str]) -> None:
        self._out |= tests
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output[_SENT] = dict(tests)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ARG002 - the hook's shape
        self._out |= getattr(node, "workeroutput", {}).get(_SENT, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0].removeprefix("tests/")
        self._seconds[file] += report.duration
        if report.when == "call" or not report.passed:
            self._files.setdefault(file, Counter())[report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = sum(counts["passed"] for counts in self._files.values())
        terminalreporter.section("secure brokers: TLS, SCRAM, least rights")
        terminalreporter.line(f"{passed} tests passed there; {len(self._out)} left out by name:")
        for test, why in sorted(self._out.items()):
            terminalreporter.line(f"  {test}: {why}")

    def pytest_sessionfinish(self) -> None:
        given: str | None = self._config.getoption("--secure-record")
        if given is None or hasattr(self._config, "workerinput") or not (self._files or self._out):
            return
        path = Path(given)
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        files: dict[str, Any] = kept.get("files", {})
        made_with = provenance.MadeWith.now()
        for file in {*self._files, *(test.partition("::")[0] for test in self._out)}:
            counts = self._files.get(file, Counter())
            files[file] = {
                "passed": counts["passed"],
                "failed": counts["failed"],
                "left_out": {test: why for test, why in sorted(self._out.items()) if test.startswith(f"{file}::")},
                "seconds": round(self._seconds[file], 1),
                "at": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
                "commit": made_with.commit,
                "kernel": made_with.kernel,
            }
        files = {file: row for file, row in sorted(files.items()) if (self._config.rootpath / "tests" / file).exists()}
        rows = files.values()
        document = {
            "command": "make test-secure TESTS=tests/scenarios",
            "passed": sum(row["passed"] for row in rows),
            "failed": sum(row["failed"] for row in rows),
            "left_out": sum(len(row["left_out"]) for row in rows),
            "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
            "versions": {name: version(name) for name in ("pyspark", "confluent-kafka", "kafka-python", "pytest")},
            "files": files,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")
