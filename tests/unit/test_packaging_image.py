"""The Dockerfile, read by a parser: what it copies, who it runs as, how it ends; and the script that builds it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser
from harness.pages import ROOT

from brew.jvm import dependencies
from brew.observability import settings as probes

TEXT = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
Steps = list[tuple[str, str]]


def stages(text: str) -> list[Steps]:
    """Each stage's instructions, the first of them its FROM."""
    found: list[Steps] = []
    for one in DockerfileParser(fileobj=io.BytesIO(text.encode())).structure:
        if one["instruction"] == "FROM":
            found.append([])
        if one["instruction"] != "COMMENT":
            found[-1].append((one["instruction"], one["value"]))
    return found


def copied(text: str) -> set[str]:
    """What is copied from the repository, not from another stage."""
    values = [value.split() for stage in stages(text) for name, value in stage if name == "COPY"]
    return {word for words in values if not words[0].startswith("--from") for word in words[:-1]}


def faults(text: str) -> list[str]:
    """What would make the image unsafe, or deaf to signals; pure, so that it can be shown to fail."""
    last = stages(text)[-1]
    names = [name for name, _ in last]
    said = dict(last)
    user = said.get("USER", "root")
    found = [f"{word} is not in the repository" for word in copied(text) if not (ROOT / word).exists()]
    found += [f"{stage[0][1]} has no version" for stage in stages(text) if not re.match(r"[\w./-]+:\d", stage[0][1])]
    if not user.split(":")[0].isdigit() or int(user.split(":")[0]) == 0:
        found.append(f"runs as {user}; Kubernetes' runAsNonRoot needs a number that is not 0")
    if "USER" in names and "RUN" in names[names.index("USER") :]:
        found.append("runs a step of the build after USER")
    found += [
        f"{name} is a shell's, which keeps signals to itself" for name in ("ENTRYPOINT", "CMD") if not words(said[name])
    ]
    if "latest" in text or "ADD" in names:
        found.append("takes what it can't know")
    return found


def words(value: str) -> Sequence[str]:
    """The words of an instruction in exec form; none for a shell's line."""
    try:
        found = json.loads(value)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def test_the_image_is_built_from_what_is_there_and_runs_as_nobody() -> None:
    assert faults(TEXT) == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("USER 10001", "USER root", "runs as root"),
        ("USER 10001\n", "", "runs as root"),
        ("COPY pipeline ", "COPY pipelines ", "pipelines is not in the repository"),
        ('["tini", "--", "brew-pipeline"]', "brew-pipeline", "ENTRYPOINT is a shell's"),
        ("python:3.11-slim-bookworm\n#", "python\n#", "python has no version"),
        ("EXPOSE", "RUN true\nEXPOSE", "runs a step of the build after USER"),
    ],
)
def test_a_dockerfile_that_is_wrong_is_caught(right: str, wrong: str, found: str) -> None:
    assert right in TEXT
    assert [one for one in faults(TEXT.replace(right, wrong, 1)) if found in one]


def test_the_builds_context_holds_what_is_copied_and_nothing_else() -> None:
    """No state, no secret and no test of this folder gets into a layer."""
    lines = [line for line in IGNORE.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied(TEXT)


def test_every_package_of_the_wheel_is_copied() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in found} <= copied(TEXT)


def test_signals_health_and_jars_meet_the_programs() -> None:
    """An init hands signals on, the probe asks where a program answers, the jars are where it looks."""
    last = stages(TEXT)[-1]
    said = dict(last)
    tini, separator, program = words(said["ENTRYPOINT"])
    assert (tini, separator) == ("tini", "--")
    assert program in PROJECT["scripts"]
    assert tini in " ".join(value for name, value in last if name == "RUN")
    health = said["HEALTHCHECK"].partition("CMD")[2].strip()
    assert f"http://127.0.0.1:{probes.PORT}/livez" in words(health)[-1]
    assert said["EXPOSE"] == str(probes.PORT)
    environment = " ".join(value for name, value in last if name == "ENV")
    assert f"{dependencies.VARIABLE}=" in environment
    assert f"PROBE_PORT={probes.PORT}" in environment
    major = re.search(r"openjdk-(\d+)-jre-headless", TEXT)
    assert major is not None
    assert int(major[1]) >= 17


def _image(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), **environment}
    return subprocess.run(
        [str(ROOT / "scripts/image.sh"), *arguments], env=given, capture_output=True, text=True, check=False, timeout=60
    )


def test_without_an_engine_it_says_what_to_do(tmp_path: Path) -> None:
    """One that is there and does not answer is none either."""
    (tmp_path / "deaf").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "deaf").chmod(0o755)
    ran = _image(tmp_path, ENGINE="deaf no-such-engine")
    assert ran.returncode == 3
    assert "no container engine answers here (asked: deaf no-such-engine)" in ran.stderr
    assert f"docker build --tag brew:{PROJECT['version']} ." in ran.stderr


def test_an_engine_that_answers_builds_and_tries_the_image(tmp_path: Path) -> None:
    """Tagged with the version, then asked for it; in the format of Docker, which keeps the health check."""
    calls = tmp_path / "calls"
    engine = f"""#!{sys.executable}
import json, os, sys
told = [*sys.argv[1:], os.environ.get("BUILDAH_FORMAT")]
open({str(calls)!r}, "a").write(json.dumps(told) + "\\n")
"""
    (tmp_path / "engine").write_text(engine)
    (tmp_path / "engine").chmod(0o755)
    ran = _image(tmp_path, ENGINE="engine")
    assert ran.returncode == 0, ran.stderr
    *before, (*built, form), (*tried, _) = map(json.loads, calls.read_text().splitlines())
    name = f"brew:{PROJECT['version']}"
    base = dict(stages(TEXT)[0])["FROM"].partition(" ")[0]
    assert [words[:-1] for words in before] == [["info"], ["info"], ["image", "inspect", base]]
    assert (built[:3], built[-1], form) == (["build", "--tag", name], ".", "docker")
    assert tried == ["run", "--rm", name, "--version"]
