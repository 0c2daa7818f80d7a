"""
Write the installed package's components as CycloneDX (1.6, JSON): scripts/sbom.py FILE; make wheel calls it.

cyclonedx-py lists all of .venv; what only development needs is removed. Equal environments give equal bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
_TOOL_S = 120

Needs = dict[NormalizedName, set[NormalizedName]]
"""A package's name -> the names of its direct dependencies."""


def of_environment() -> dict[str, Any]:
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    # The tool's own validation takes longer than everything else.
    how = ["--mc-type", "application", "--output-reproducible", "--spec-version", "1.6", "--no-validate"]
    command = [*tool, *how, "--output-format", "JSON", sys.executable]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_TOOL_S)
    if done.returncode:
        sys.exit(f"sbom: cyclonedx-py failed ({done.returncode}); make setup installs it\n{done.stderr.decode()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def needs(wanted: Iterable[str]) -> Needs:
    """Return the dependencies of these requirements on this platform; extras are included only if requested."""
    found: Needs = {}
    seen: set[tuple[NormalizedName, frozenset[str]]] = set()
    left = [Requirement(text) for text in wanted]
    while left:
        one = left.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        asked = [Requirement(text) for text in requires(name) or ()]
        due = [
            other
            for other in asked
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras or {""})
        ]
        found.setdefault(name, set()).update(canonicalize_name(other.name) for other in due)
        left += due
    return found


def of_wheel(document: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Reduce ``document`` to what a user of the wheel installs: the ``wanted`` requirements and their dependencies."""
    direct = [canonicalize_name(Requirement(text).name) for text in wanted]
    graph, parts = needs(wanted), {canonicalize_name(part["name"]): part for part in document["components"]}
    refs = {name: parts[name]["bom-ref"] for name in sorted(graph)}
    root = document["metadata"]["component"]["bom-ref"]
    edges = {refs[name]: sorted(refs[other] for other in others) for name, others in graph.items()}
    edges[root] = sorted(refs[name] for name in direct)
    return {
        **document,
        "components": [parts[name] for name in refs],
        "dependencies": [{"ref": ref, "dependsOn": others} for ref, others in sorted(edges.items())],
    }


if __name__ == "__main__":
    (out,) = map(Path, sys.argv[1:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    out.write_text(json.dumps(of_wheel(of_environment(), project["dependencies"]), indent=2) + "\n")
