"""`scripts/setup.sh` beside programs that stand in for Python: what an interrupted set-up leaves."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from harness.commands import executable
from harness.pages import ROOT
from harness.waiting import has_ended, until

# Makes nothing, and hangs where the broker's archive would be made.
PYTHON = """
if [[ $* == "-m sandbox archive" ]]; then echo $$ > archiving.new; mv archiving.new archiving; exec sleep 60; fi
"""


def test_ctrl_c_ends_what_runs_beside_and_stamps_nothing_that_was_not_made(tmp_path: Path) -> None:
    """The archives are made in the background, where bash ignores SIGINT: they went on, and were stamped as made."""
    executable(tmp_path / "scripts/setup.sh", (ROOT / "scripts/setup.sh").read_text(), "/bin/bash")
    executable(tmp_path / ".venv/bin/python", PYTHON, "/bin/bash")
    (tmp_path / "brew/jvm").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "brew/jvm/jars.lock"):
        (tmp_path / name).touch()
    with (tmp_path / "output").open("w") as output:
        line = ["bash", "scripts/setup.sh"]
        setup = subprocess.Popen(line, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    try:
        until((tmp_path / "archiving").exists, "the archive is being made", 20)
        archiving = int((tmp_path / "archiving").read_text())
        os.killpg(setup.pid, signal.SIGINT)
        assert setup.wait(20) != 0
        until(lambda: has_ended(archiving), "what made it has ended", 20)
    finally:
        setup.kill()
    assert not (tmp_path / ".jvm/.archive-stamp").exists()
    assert (tmp_path / ".jvm/.stamp").exists()
