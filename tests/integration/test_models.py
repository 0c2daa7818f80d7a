"""The models hold in all interleavings, and each broken variant is caught."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 300.0


def test_the_models_hold_and_every_broken_variant_is_caught() -> None:
    """Spin searches them to the end; the variants are those that models/README.md names, and no model is skipped."""
    done = subprocess.run(
        [ROOT / "scripts/models.sh"], capture_output=True, text=True, timeout=BOUND_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    results = re.findall(r"^(\w+) +(?:-D(\w+)|as it is) +\S+ states  (\w+)$", done.stdout, re.MULTILINE)
    page = (ROOT / "models/README.md").read_text()
    variants = re.findall(r"^\| `(claims|transaction|sink)` `(\w+)` \|", page, re.MULTILINE)
    assert len(variants) == 17
    models = [(model, "", "holds") for model in ("claims", "transaction", "sink")]
    assert sorted(results) == sorted(models + [(*variant, "caught") for variant in variants])
