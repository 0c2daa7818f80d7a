"""What an installed package needs beside pip's work: jars that are checked, a version, a script for spark-submit."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from harness.pages import ROOT

import downstream.__main__
import pipeline.__main__
import proof.__main__
import sandbox.__main__
from brew.cli import exit_code_of
from brew.errors import Refused
from brew.jvm import dependencies
from brew.jvm.dependencies import Part, fetch, java
from brew.settings import SparkSettings
from brew.spark import session
from pipeline.__main__ import settings_of
from pipeline.submit import spark_submit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JARS = {"a-1.jar": b"one", "b-2.jar": b"two"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of jars that are those of the list."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name, content in JARS.items():
        (folder / name).write_bytes(content)
    sums = tmp_path / "sums"
    sums.write_text("".join(f"{hashlib.sha256(content).hexdigest()}  spark/{name}\n" for name, content in JARS.items()))
    monkeypatch.setattr(dependencies, "SUMS", sums)
    return folder


def _program(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!{sys.executable}\n{text}")
    place.chmod(0o755)
    return place


# Jars.


def test_jars_from_a_folder_are_taken_once(source: Path, tmp_path: Path) -> None:
    """What is no jar of the list stays behind; the second call finds all there, without the folder, too."""
    (source / "foreign.jar").touch()
    place = tmp_path / "deep" / "place"
    assert fetch(Part.SPARK, place, source)
    assert [jar.name for jar in dependencies.jars(Part.SPARK, place)] == sorted(JARS)
    assert not fetch(Part.SPARK, place, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"twp", "b-2.jar has the SHA-256 .*, this version needs"), (None, "b-2.jar is not in .*1 of 2 jars missing")],
)
def test_a_jar_that_is_not_the_lists_changes_nothing(
    source: Path, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    """A damaged or missing one is named with what to do; what was there stays, and no half of the new is left."""
    place = tmp_path / "place"
    (place / "spark").mkdir(parents=True)
    (place / "spark" / "old.jar").touch()
    (source / "b-2.jar").unlink()
    if content is not None:
        (source / "b-2.jar").write_bytes(content)
    with pytest.raises(Refused, match=sentence) as refusal:
        fetch(Part.SPARK, place, source)
    assert "brew-pipeline setup" in str(refusal.value)
    assert [jar.name for jar in place.rglob("*.jar")] == ["old.jar"]


def test_a_jar_that_was_damaged_later_is_fetched_again(source: Path, tmp_path: Path) -> None:
    """The set-up compares what is there, too."""
    fetch(Part.SPARK, tmp_path, source)
    (tmp_path / "spark" / "a-1.jar").write_bytes(b"rot")
    with pytest.raises(Refused, match="damaged"):
        dependencies.check(Part.SPARK, tmp_path / "spark")
    assert fetch(Part.SPARK, tmp_path, source)
    dependencies.check(Part.SPARK, tmp_path / "spark")


def test_ivy_fetches_what_no_folder_brings(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that stands in for Ivy fails, and its last words are told; then it puts the jars where it is asked to."""
    fail = tmp_path / "fail"
    fail.touch()
    ivy = f"""
import pathlib, shutil, sys
if "-version" in sys.argv:
    sys.exit(print('openjdk version "17.0.1"', file=sys.stderr))
if pathlib.Path({str(fail)!r}).exists():
    sys.exit("unresolved dependency: a-1")
assert sys.argv[sys.argv.index("-confs") + 1] == "spark" and "-ivy" in sys.argv
folder = pathlib.Path(sys.argv[sys.argv.index("-retrieve") + 1].replace("[conf]", "spark")).parent
shutil.copytree({str(source)!r}, folder, dirs_exist_ok=True)
"""
    _program(tmp_path / "home/bin/java", ivy)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(Refused, match="--from\nunresolved dependency: a-1"):
        fetch(Part.SPARK, tmp_path / "place")
    fail.unlink()
    assert fetch(Part.SPARK, tmp_path / "place")
    dependencies.check(Part.SPARK, tmp_path / "place" / "spark")


@pytest.mark.parametrize(("told", "sentence"), [("11.0.2", "is version 11"), ("", "is version unknown")])
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, sentence: str) -> None:
    _program(tmp_path / "bin/java", f"import sys; print('openjdk version \"{told}\"', file=sys.stderr)")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Refused, match=f"Java 17 or later is needed .*{sentence}"):
        java()


def test_the_list_names_the_connector_of_pysparks_version() -> None:
    """Ivy's file, the checksums and the requirement move together; both parts are listed."""
    pyspark = next(one.partition("==")[2] for one in PROJECT["dependencies"] if one.startswith("pyspark=="))
    assert f'name="spark-sql-kafka-0-10_2.13" rev="{pyspark}"' in dependencies.IVY.read_text()
    assert f"spark-sql-kafka-0-10_2.13-{pyspark}.jar" in dependencies.checksums(Part.SPARK)
    kafka = next(name for name in dependencies.checksums(Part.KAFKA) if name.startswith("kafka_2.13-"))
    assert f"spark-{pyspark}-kafka-{kafka.removeprefix('kafka_2.13-').removesuffix('.jar')}" == dependencies.VERSIONS


@pytest.mark.parametrize(("version", "part"), dependencies.KAFKAS.items())
def test_each_broker_that_can_be_asked_for_is_pinned(version: str, part: Part) -> None:
    """By Ivy's file and by its checksums, and it is the command with that version that fetches it."""
    assert f'name="kafka_2.13" rev="{version}" conf="{part}->default"' in dependencies.IVY.read_text()
    assert f"kafka_2.13-{version}.jar" in dependencies.checksums(part)
    said = str(dependencies.missing_jars(part, Path("place")))
    assert ("make setup" in said, f"sandbox setup --kafka {version}" in said) == (
        part is Part.KAFKA,
        part is not Part.KAFKA,
    )


def test_where_the_jars_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given, then the variable, then a checkout, then a folder per version in the user's cache."""
    monkeypatch.delenv(dependencies.VARIABLE, raising=False)
    assert dependencies.home() == ROOT / ".jvm"
    monkeypatch.setattr(dependencies, "_CHECKOUT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert dependencies.home() == tmp_path / "cache/brew" / dependencies.VERSIONS
    monkeypatch.setenv(dependencies.VARIABLE, "/v")
    assert dependencies.home() == Path("/v")
    assert dependencies.home("/given") == Path("/given")


def test_a_run_on_spark_without_jars_is_refused_before_a_jvm_starts(tmp_path: Path) -> None:
    """Whoever brings them another way is believed."""
    with pytest.raises(Refused, match=r"no jars in .*spark: `brew-pipeline setup` .*BREW_JVM_DIR"):
        session.start_context(SparkSettings("local[2]", str(tmp_path)))
    session._check_jars(SparkSettings("local[2]", str(tmp_path), {"spark.jars.packages": "a:b:c"}))


@pytest.mark.parametrize("master", ["yarn", "local[2]"])
def test_the_executors_python_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """spark-submit reads `spark.pyspark.python`; a driver that it did not start would take `python3` of PATH."""

    class StartedError(Exception):
        """The JVM's start was reached."""

    def start(*_: object) -> None:
        raise StartedError

    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    monkeypatch.setattr(session.gateway, "start", start)
    with pytest.raises(StartedError):
        session.start_context(SparkSettings(master, None, {"spark.pyspark.python": "/env/bin/python"}))
    assert os.environ["PYSPARK_PYTHON"] == "/env/bin/python"


# Programs.

PROGRAMS = {
    "pipeline": pipeline.__main__.cli,
    "downstream": downstream.__main__.downstream,
    "proof": proof.__main__.proof,
    "sandbox": sandbox.__main__.cli,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_a_console_script(name: str) -> None:
    """It is made from a line of pyproject.toml, which has to lead somewhere."""
    module, _, function = PROJECT["scripts"][f"brew-{name}"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert module == f"{name}.__main__"


def test_the_one_command_is_a_console_script() -> None:
    """It stands beside the script of each program."""
    assert set(PROJECT["scripts"]) == {"brew", *(f"brew-{name}" for name in PROGRAMS)}
    module, _, function = PROJECT["scripts"]["brew"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert module == "brew.__main__"


@pytest.mark.parametrize(
    ("called", "told"),
    [("/opt/venv/bin/brew-pipeline", "brew-pipeline"), ("/src/pipeline/__main__.py", "python -m pipeline")],
)
def test_usage_names_the_program_as_its_user_calls_it(
    called: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who copies the line that a mistake prints gets the help."""
    monkeypatch.setattr(sys, "argv", [called])
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", ["run", "--lanes", "x"]) == 64
    assert f"Try '{told} run --help'" in capsys.readouterr().err


def test_every_package_carries_its_types() -> None:
    """Without the marker, type checkers take nothing from an installed package."""
    assert all((ROOT / package / "py.typed").exists() for package in PROGRAMS)


@pytest.mark.parametrize("shipped", [False, True])
def test_the_file_that_spark_submit_runs_starts(tmp_path: Path, *, shipped: bool) -> None:
    """In its own folder, where `numbers.py` stands, and alone beside the zip, as on a machine of the cluster."""
    script = ROOT / "pipeline/submit_main.py"
    environment = {name: value for name, value in os.environ.items() if name != dependencies.VARIABLE}
    if shipped:
        script = Path(shutil.copy(script, tmp_path / "submitted.py"))
        environment["PYTHONPATH"] = session.package_archive(("brew", "pipeline"))
    words = [sys.executable, str(script), "run", "--master", "yarn", "--lanes", "0"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if shipped:
        shutil.rmtree(Path(environment["PYTHONPATH"]).parent)
    assert done.returncode == 64, done.stderr
    assert "--lanes is 0: it has to be between" in done.stderr


def test_spark_submit_gets_the_jars_that_are_here(tmp_path: Path) -> None:
    """Spark's own Ivy can't always resolve the connector; it is asked only where nothing was set up."""
    context = pipeline.__main__.run_command.make_context("run", ["--master", "yarn", "--jvm-dir", str(tmp_path)])
    line = spark_submit(settings_of(context.params))
    assert line[line.index("--packages") + 1] == session.CONNECTOR
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "connector.jar").touch()
    line = spark_submit(settings_of(context.params))
    assert line[line.index("--jars") + 1] == f"{tmp_path}/spark/connector.jar"
    assert "--packages" not in line


def test_the_set_up_command_tells_what_it_did(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As JSON for scripts, and as one line for people; Spark's launcher is asked how it starts Java."""
    _program(
        tmp_path / "home/bin/java",
        """
import sys
if "-version" in sys.argv:
    sys.exit(print('openjdk version "21"', file=sys.stderr))
print("java", "-cp", "x", "--add-opens=a/b=ALL-UNNAMED", "-Da=b", "Main", sep="\\0", end="")
""",
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    given = ["setup", "--jvm-dir", str(tmp_path / "place"), "--from", str(source)]
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", [*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fetched"], told["jars"], told["bytes"]) == (True, sorted(JARS), 6)
    assert (tmp_path / "place" / "java-options").read_text() == "--add-opens=a/b=ALL-UNNAMED\n-Da=b\n"
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", given) == 0
    assert "2 jars, 0.0 MB, there already, checked" in capsys.readouterr().out
