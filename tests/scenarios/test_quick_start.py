"""The page "Quick start", as a newcomer takes it: its commands, from the wheel, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.pages import ROOT

from brew.jvm import dependencies
from sandbox.jvm import QUICK
from sandbox.process import free

PAGE = (ROOT / "docs/guide/quick-start.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = "".join(re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).splitlines()


def borrowed(folder: Path) -> Path:
    """Links to the packages that the tests' own environment has, without brew itself."""
    folder.mkdir()
    for path in map(Path, sys.path):
        if path.name in {"site-packages", "dist-packages"} and path.is_dir():
            for package in path.iterdir():
                if (
                    not re.match(r"(brew|__editable__|_*editable).*|.*\.pth", package.name)
                    and not (folder / package.name).exists()
                ):
                    (folder / package.name).symlink_to(package)
    return folder


def cached_jars(home: Path) -> None:
    """The jars that `make setup` fetched, where the two set-up commands look for them; they compare the checksums."""
    cache = home / ".cache/brew" / dependencies.VERSIONS
    cache.mkdir(parents=True)
    for part in (dependencies.Part.SPARK, dependencies.Part.KAFKA):
        (cache / part).symlink_to((dependencies.home() / part).resolve())


@pytest.fixture
def folder(wheel: Path, tmp_path: Path) -> Path:
    """An empty one, but for the wheel."""
    made = tmp_path / "empty"
    made.mkdir()
    shutil.copy(wheel, made)
    assert wheel.name in PAGE
    cached_jars(tmp_path)
    return made


def test_the_pages_commands_work_one_after_another(folder: Path, tmp_path: Path) -> None:
    """
    Everything that the page shows is printed, in that order; the numbers of a crash depend on timing.

    Packages and jars are those that this machine has already. The port is a free one, as the page says for machines on
    which 9092 is taken.
    """
    (port,) = free(1)
    packages = borrowed(tmp_path / "borrowed")
    script = "set -eu\n" + "".join(COMMANDS)
    ready = f"echo {packages} > $(echo venv/lib/python3.*/site-packages)/borrowed.pth\n"
    for line, replaced in {
        ". venv/bin/activate\n": f". venv/bin/activate\n{ready}",
        "brew sandbox up\n": f"brew sandbox up --port {port}\n",
    }.items():
        assert script.count(line) == 1
        script = script.replace(line, replaced)
    python = tmp_path / "bin"
    python.mkdir()
    (python / "python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    environment = {
        "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "BOOTSTRAP": f"localhost:{port}",
        "PIP_NO_INDEX": "1",
        "JDK_JAVA_OPTIONS": " ".join(QUICK),  # for the suite's time alone; a user's JVMs start with their own
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **{name: os.environ[name] for name in ("JAVA_HOME", "TMPDIR") if name in os.environ},
    }
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
    finally:
        down = [str(folder / "venv/bin/brew"), "sandbox", "down", "--wipe"]
        if Path(down[0]).exists():
            subprocess.run(down, cwd=folder, env=environment, capture_output=True, check=False, timeout=60)
    output = done.stdout
    assert done.returncode == 0, output
    position = 0
    for line in SHOWN:
        pattern = re.escape(line.replace("9092", str(port)))
        if "crash before commit" in line:  # a range without a dead letter has nothing in brackets
            pattern = re.sub(r"\d+", r"\\d+", pattern).replace(r"\ \(and", r"( \(and") + ")?"
        match = re.compile(pattern).search(output, position)
        assert match, f"{line!r} is missing, or in another place:\n{output}"
        position = match.end()
    assert str(ROOT) not in output
