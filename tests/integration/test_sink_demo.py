"""`make demo-sink`: what it prints on a real broker is what the guide's page shows."""

from __future__ import annotations

import re
import subprocess
import sys

from harness.brokers import Broker
from harness.pages import ROOT
from harness.pipeline import environment, quick_jvms

PAGE = ROOT / "docs/guide/sink.md"


def test_the_sinks_demo_prints_what_the_page_shows(broker: Broker) -> None:
    """Its topics have names of their own, so a broker's topics are used only once."""
    shown = re.search(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    line = [sys.executable, str(ROOT / "scripts/demo_sink.py"), "--bootstrap", broker.bootstrap]
    given = {**environment("sink-demo"), "PYTHONPATH": str(ROOT), **quick_jvms()}
    done = subprocess.run(line, cwd=ROOT, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, shown[1]), done.stderr
