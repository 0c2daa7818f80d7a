"""The wheel, as pip installs it: built once, looked into, installed far from the repository, and put to work."""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.pages import ROOT
from harness.pipeline import Stage
from harness.servers import Broker, Names
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from brew.jvm import dependencies

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("brew", "pipeline", "operations", "downstream", "proof", "sandbox")
SECRETS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]|\bAKIA[0-9A-Z]{16}\b")


@dataclass(frozen=True)
class Installed:
    """An environment of its own that holds the wheel; what the wheel requires is borrowed from the tests' own."""

    wheel: Path
    folder: Path

    def run(
        self, script: str, *arguments: str, seconds: float = 60.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A console script, started in an empty folder without a trace of the repository in its environment."""
        empty = self.folder / "elsewhere"
        empty.mkdir(exist_ok=True)
        variables = {
            "PATH": f"{self.folder}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(empty),
            **{name: os.environ[name] for name in ("JAVA_HOME", "TMPDIR") if name in os.environ},
            **environment,
        }
        command = [str(self.folder / "venv/bin" / script), *arguments]
        return subprocess.run(
            command, cwd=empty, env=variables, capture_output=True, text=True, check=False, timeout=seconds
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
    # A path in a .pth file adds that folder alone: the .pth file by which the tests' own environment finds the
    # repository is not read.
    site = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    next(venv.glob("lib/python3*/site-packages")).joinpath("borrowed.pth").write_text(f"{site}\n")
    return Installed(wheel, folder)


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_packages_and_nothing_else(installed: Installed) -> None:
    """Every module and data file of the packages, types, licence, the console scripts; no test, no state, no secret."""
    files = content(installed.wheel)
    tracked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PACKAGES]
    names = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    expected = {name for name in names if name and (ROOT / name).exists()}
    data = f"{PROJECT['name']}-{PROJECT['version']}.dist-info/"
    assert sorted(expected ^ {name for name in files if not name.startswith(data)}) == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    assert data + "licenses/LICENSE" in files
    scripts = files[data + "entry_points.txt"].decode()
    assert all(f"{name} = {target}" in scripts for name, target in PROJECT["scripts"].items())
    assert [name for name, text in files.items() if SECRETS.search(text)] == []
    assert SECRETS.search(b"-----BEGIN EC PRIVATE KEY-----\nMHcC")


def test_the_wheel_says_what_it_needs_and_which_bytes_it_is(installed: Installed) -> None:
    """Its requirements are those of the project, met by the tests' environment; its checksum stands beside it."""
    name = f"{PROJECT['name']}-{PROJECT['version']}.dist-info/METADATA"
    metadata = email.message_from_bytes(content(installed.wheel)[name])
    assert (metadata["Version"], metadata["Requires-Python"]) == (PROJECT["version"], PROJECT["requires-python"])
    required = {str(Requirement(text)) for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text}
    assert required == {str(Requirement(text)) for text in PROJECT["dependencies"]}
    files = [installed.wheel, bill_of_materials(installed.wheel)]
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    assert (installed.wheel.parent / "SHA256SUMS").read_text() == sums


def bill_of_materials(wheel: Path) -> Path:
    return wheel.parent / f"{PROJECT['name']}-{PROJECT['version']}.cdx.json"


def test_what_the_wheel_is_made_of_stands_beside_it(installed: Installed) -> None:
    """CycloneDX: each package that it needs in the version that was tested, and none that only we need."""
    document = json.loads(bill_of_materials(installed.wheel).read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    root = document["metadata"]["component"]
    assert (root["name"], root["version"]) == (PROJECT["name"], PROJECT["version"])
    lines = [line.split("==") for line in (ROOT / "constraints.txt").read_text().split()]
    pinned = {canonicalize_name(name): version for name, version in lines}
    components = {canonicalize_name(component["name"]): component for component in document["components"]}
    versions = {name: component["version"] for name, component in components.items()}
    assert versions == {name: pinned.get(name) for name in components}
    assert all(component["purl"].startswith(f"pkg:pypi/{name}@") for name, component in components.items())
    direct = {canonicalize_name(Requirement(requirement).name) for requirement in PROJECT["dependencies"]}
    assert direct | {"py4j", "numpy", "psycopg-binary"} <= components.keys()
    assert not components.keys() & {"pytest", "ruff", "mypy", "cyclonedx-bom", "mkdocs", "opentelemetry-sdk"}
    edges = {dependency["ref"]: dependency["dependsOn"] for dependency in document["dependencies"]}
    assert sorted(edges[root["bom-ref"]]) == sorted(components[name]["bom-ref"] for name in direct)
    assert components["py4j"]["bom-ref"] in edges[components["pyspark"]["bom-ref"]]
    assert str(ROOT) not in json.dumps(document)


def test_the_console_scripts_tell_their_version_and_their_own_name(installed: Installed) -> None:
    for script in PROJECT["scripts"]:
        ran = installed.run(script, "--version")
        assert (ran.returncode, ran.stdout) == (0, f"brew {PROJECT['version']}\n"), ran.stderr
    assert "Usage: brew-pipeline run " in installed.run("brew-pipeline", "run", "--help").stdout
    assert "Usage: brew run " in installed.run("brew", "run", "--help").stdout
    completed = installed.run("brew", _BREW_COMPLETE="bash_complete", COMP_WORDS="brew la", COMP_CWORD="1")
    assert completed.stdout == "plain,lag\n", completed.stderr


def test_without_spark_it_needs_nothing_but_kafka(installed: Installed, broker: Broker, names: Names) -> None:
    """Topics, orders, a drain, the proof: four programs of the package, in an empty folder."""
    stage = Stage(broker, names)
    bootstrap = ["--bootstrap", broker.bootstrap]
    topics = ["--input", names.input, "--output", names.output, "--dead-letter", names.dead_letter]
    group = ["--group", names.group]
    python = installed.folder / "venv/bin/python"
    modules = "import pipeline, brew.jvm.dependencies as p; print(pipeline.__file__, p.home())"
    printed = subprocess.check_output([str(python), "-c", modules], cwd=installed.folder, text=True)
    assert str(ROOT) not in printed
    for command in (
        ["brew-proof", "topics", *bootstrap, *topics, "--partitions", "2"],
        ["brew-proof", "seed", *bootstrap, "--topic", names.input, "--count", "60"],
        ["brew-pipeline", "run", *bootstrap, *topics, *group, "--master", "none"],
        ["brew-proof", "verify", *bootstrap, *topics, *group],
        ["brew", "run", *bootstrap, *topics, *group, "--master", "none"],
        ["brew", "verify", *bootstrap, *topics, *group],
    ):
        ran = installed.run(*command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = installed.run("brew-downstream", "count", *bootstrap, "--topic", names.output)
    assert "60 records, 60 unique keys, 0 duplicates" in counted.stdout
    stage.proven(inputs=60, outputs=60)


def test_spark_needs_the_set_up_and_drains_behind_it(installed: Installed, broker: Broker, names: Names) -> None:
    """Refused with the command that makes it ready; a submitted run takes jars and package with it."""
    stage = Stage(broker, names)
    stage.create(2)
    stage.seed(60, "--bad-every", "6")
    run = ["run", *stage.options(), "--master", "local[2]"]
    refused = installed.run("brew-pipeline", *run)
    assert refused.returncode == 3
    assert "`brew-pipeline setup`" in refused.stderr
    assert str(installed.folder / "elsewhere/.cache/brew") in refused.stderr
    setup = installed.run("brew-pipeline", "setup", "--from", str(dependencies.home()))
    assert setup.returncode == 0, setup.stderr
    assert f"{len(dependencies.checksums(dependencies.Part.SPARK))} jars" in setup.stdout
    command = shlex.split(installed.run("brew-pipeline", "submit", "--dry-run", *run[1:-1], "yarn").stdout)
    assert all(jar.startswith(str(installed.folder)) for jar in command[command.index("--jars") + 1].split(","))
    with zipfile.ZipFile(command[command.index("--py-files") + 1]) as shipped:
        assert {"brew/readers/connector.py", "brew/kafka/transaction.py"} <= set(shipped.namelist())
    drained = installed.run("brew-pipeline", *run)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    stage.proven(inputs=60, outputs=50, dead_letters=10)


def test_the_sandbox_of_a_wheel_says_what_fetches_its_broker(installed: Installed) -> None:
    ran = installed.run("brew-sandbox", "up", "--port", "0")
    assert ran.returncode == 3
    assert "`brew-sandbox setup`" in ran.stderr
