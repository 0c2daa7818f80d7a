"""`--results FILE`: each test's outcome, time and measurements as JSON, for runs that CI has no time or engine for."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT


class Results:
    """Entries of this session's tests replace those in the file; others stay, so that the suite may be run in parts."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._file = config.rootpath / file
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._tests[report.nodeid] = {
                "outcome": report.outcome if report.when == "call" else f"{report.when} {report.outcome}",
                "seconds": round(report.duration, 1),
                "load": round(os.getloadavg()[0], 1),  # needed to interpret the times
                "commit": _output_of("git", "rev-parse", "--short=12", "HEAD"),
                "date": dt.datetime.now(dt.UTC).date().isoformat(),
                **({"measured": dict(report.user_properties)} if report.user_properties else {}),
            }

    def pytest_sessionfinish(self) -> None:
        before = json.loads(self._file.read_text())["tests"] if self._file.exists() else {}
        kept = {name: test for name, test in before.items() if (ROOT / name.partition("::")[0]).exists()}
        tests = dict(sorted({**kept, **self._tests}.items()))
        document = {"machine": _machine(), "tests": tests}
        self._file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _machine() -> dict[str, str]:
    engine = "podman" if shutil.which("podman") else "docker"
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "engine": _output_of(engine, "--version"),
    }


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
