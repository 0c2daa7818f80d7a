"""What an installed package needs beside pip's work: jars that are checked, a version, a script for spark-submit."""

from __future__ import annotations

import ast
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest
from dockerfile_parse import DockerfileParser
from harness.commands import PROGRAMS, executable, script
from harness.pages import PACKAGES, ROOT, tables

import pipeline.__main__
from brew.cli import exit_code_of
from brew.errors import Refused, UsageError
from brew.jvm import dependencies
from brew.jvm.dependencies import Part, fetch, java
from brew.observability import settings as probes
from brew.options import run_options
from brew.settings import SparkSettings
from brew.spark import session
from pipeline.__main__ import settings_of
from pipeline.submit import same_options, spark_submit

reference = script("reference")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JARS = {"a-1.jar": b"one", "b-2.jar": b"two"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, content in JARS.items():
        (folder / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in JARS.items()}
    lock = tmp_path / "lock"
    lock.write_text(f"{digests['a-1.jar']} spark org.one a 1\n{digests['b-2.jar']} spark org.two b 2\n")
    monkeypatch.setattr(dependencies, "LOCK", lock)
    return folder


# Jars.


def test_jars_from_a_folder_are_taken_once_and_again_where_they_are_damaged(source: Path, tmp_path: Path) -> None:
    """What is no jar of the list stays behind; the second call finds all there, without the folder, too."""
    (source / "foreign.jar").touch()
    place = tmp_path / "deep" / "place"
    assert fetch(Part.SPARK, place, source)
    assert [jar.name for jar in dependencies.jars(Part.SPARK, place)] == sorted(JARS)
    assert not fetch(Part.SPARK, place, tmp_path / "nowhere")
    (place / "spark" / "a-1.jar").write_bytes(b"rot")
    with pytest.raises(Refused, match="damaged"):
        dependencies.check(Part.SPARK, place)
    assert fetch(Part.SPARK, place, source)
    dependencies.check(Part.SPARK, place)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"twp", "b-2.jar has the SHA-256 .*, this version needs"), (None, "b-2.jar is not in .*1 of 2 jars missing")],
)
def test_a_jar_of_no_list_changes_nothing(source: Path, tmp_path: Path, content: bytes | None, sentence: str) -> None:
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
assert sys.argv[sys.argv.index("-confs") + 1] == "spark"
module = pathlib.Path(sys.argv[sys.argv.index("-ivy") + 1]).read_text()
assert 'org="org.two" name="b" rev="2" transitive="false"' in module
assert 'usepoms="false"' in pathlib.Path(sys.argv[sys.argv.index("-settings") + 1]).read_text()
folder = pathlib.Path(sys.argv[sys.argv.index("-retrieve") + 1].replace("[conf]", "spark")).parent
shutil.copytree({str(source)!r}, folder, dirs_exist_ok=True)
"""
    executable(tmp_path / "home/bin/java", ivy)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(Refused, match="--from to their directory\nunresolved dependency: a-1"):
        fetch(Part.SPARK, tmp_path / "place")
    fail.unlink()
    assert fetch(Part.SPARK, tmp_path / "place")
    dependencies.check(Part.SPARK, tmp_path / "place")


@pytest.mark.parametrize(("version", "message"), [("11.0.2", "is version 11"), ("", "is version unknown")])
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, message: str) -> None:
    executable(tmp_path / "bin/java", f"import sys; print('openjdk version \"{version}\"', file=sys.stderr)")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Refused, match=f"Java 17 or later is needed .*{message}"):
        java()


def test_the_list_names_the_connector_of_pysparks_version() -> None:
    pyspark = next(one.partition("==")[2] for one in PROJECT["dependencies"] if one.startswith("pyspark=="))
    assert f'name="spark-sql-kafka-0-10_2.13" rev="{pyspark}"' in dependencies.IVY.read_text()
    assert f"spark-sql-kafka-0-10_2.13-{pyspark}.jar" in dependencies.checksums(Part.SPARK)
    kafka = next(name for name in dependencies.checksums(Part.KAFKA) if name.startswith("kafka_2.13-"))
    assert f"spark-{pyspark}-kafka-{kafka.removeprefix('kafka_2.13-').removesuffix('.jar')}" == dependencies.VERSIONS


@pytest.mark.parametrize(("version", "part"), dependencies.KAFKAS.items())
def test_each_broker_that_can_be_asked_for_is_pinned(version: str, part: Part) -> None:
    assert f'name="kafka_2.13" rev="{version}" conf="{part}->default"' in dependencies.IVY.read_text()
    assert f"kafka_2.13-{version}.jar" in dependencies.checksums(part)
    message = str(dependencies.missing_jars(part, Path("place")))
    usual = part is Part.KAFKA
    assert ("make setup" in message, f"sandbox setup --kafka {version}" in message) == (usual, not usual)


def test_the_lock_file_is_of_what_ivy_s_file_asks_for() -> None:
    """Otherwise `scripts/resolve_jars.py` was forgotten."""
    locked = {(jar.part, jar.module, jar.revision) for part in Part for jar in dependencies.locked(part)}
    roots = {
        (part.removesuffix("->default"), root.attrib["name"], root.attrib["rev"])
        for root in ET.parse(dependencies.IVY).iter("dependency")
        for part in root.attrib["conf"].removesuffix("->default").split(",")
    }
    assert roots
    assert roots <= locked


def test_where_the_jars_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(Refused, match=r"no jars in .*spark; run `brew-pipeline setup` .*BREW_JVM_DIR"):
        session.start_context(SparkSettings("local[2]", str(tmp_path)))
    session._check_jars(SparkSettings("local[2]", str(tmp_path), {"spark.jars.packages": "a:b:c"}))


@pytest.mark.parametrize("master", ["yarn", "local[2]"])
def test_the_executors_python_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """
    spark-submit reads `spark.pyspark.python`; a driver that it did not start would take `python3` of PATH.

    It is that run's only: the next run in a notebook had it, too, or a cluster the driver's from a run with `local`.
    """

    class StartedError(Exception):
        """The JVM's start was reached."""

    pythons = list[str | None]()

    def started(*_given: object) -> None:
        pythons.append(os.environ.get("PYSPARK_PYTHON"))
        raise StartedError

    monkeypatch.setattr(session.gateway, "start", started)
    for before in ("another", None):
        if before is None:
            monkeypatch.delenv("PYSPARK_PYTHON")
        else:
            monkeypatch.setenv("PYSPARK_PYTHON", before)
        for conf in ({"spark.pyspark.python": "/env/bin/python"}, {}):
            with pytest.raises(StartedError):
                session.start_context(SparkSettings(master, None, conf))
            assert os.environ.get("PYSPARK_PYTHON") == before
    default = None if master == "yarn" else sys.executable
    assert pythons == ["/env/bin/python", "another", "/env/bin/python", default]


# Programs.


def test_brew_and_each_program_are_console_scripts() -> None:
    scripts = {"brew": "brew", **{f"brew-{name}": name for name in PROGRAMS}}
    assert PROJECT["scripts"].keys() == scripts.keys()
    for script_name, package in scripts.items():
        module, _, function = PROJECT["scripts"][script_name].partition(":")
        assert module == f"{package}.__main__"
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("called", "shown"),
    [("/opt/venv/bin/brew-pipeline", "brew-pipeline"), ("/src/pipeline/__main__.py", "python -m pipeline")],
)
def test_usage_names_the_program_as_its_user_calls_it(
    called: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", ["run", "--lanes", "x"]) == 64
    assert f"Try '{shown} run --help'" in capsys.readouterr().err


TIMES = ["--probe-port", "8080", "--polling-ttl", "400", "--consuming-ttl", "500.5"]


def run_context(*words: str) -> click.Context:
    return pipeline.__main__.run_command.make_context("run", list(words))


def submitted_line(*words: str) -> list[str]:
    context = run_context("--master", "yarn", *words)
    return spark_submit(settings_of(context.params), context.command.params, context.params)


def same_words(*words: str) -> list[str]:
    context = run_context(*words)
    return same_options(settings_of(context.params), context.command.params, context.params)


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


def test_a_submitted_function_may_be_in_a_file_with_the_name_of_one_of_ours(tmp_path: Path) -> None:
    """`brew init` writes a `transformation.py`, and the folder of the script that spark-submit runs has another one."""
    (tmp_path / "transformation.py").write_text("def add_domain(record):\n    return record\n")
    words = [sys.executable, str(ROOT / "pipeline/submit_main.py"), "submit", "--dry-run", "--master", "yarn"]
    words += ["--transform", "transformation:add_domain"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_spark_submit_gets_the_jars_that_are_here(tmp_path: Path) -> None:
    """Spark's own Ivy can't always resolve the connector; it is asked only where nothing was set up."""
    line = submitted_line("--jvm-dir", str(tmp_path))
    assert line[line.index("--packages") + 1] == session.CONNECTOR
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "connector.jar").touch()
    line = submitted_line("--jvm-dir", str(tmp_path))
    assert line[line.index("--jars") + 1] == f"{tmp_path}/spark/connector.jar"
    assert "--packages" not in line


@pytest.mark.parametrize("name", ["json.py", "pipeline.py", "turtle.py"])
def test_spark_submit_refuses_a_file_that_would_hide_another_module(tmp_path: Path, name: str) -> None:
    """A run loads it by its path, but spark-submit puts its folder before all others: the driver would not start."""
    (tmp_path / name).write_text("def f(record):\n    return record\n")
    with pytest.raises(UsageError, match=rf"would hide the module '{name.removesuffix('.py')}'; give the file another"):
        submitted_line("--transform", f"{tmp_path / name}:f")


def test_spark_submit_gets_a_file_of_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As brew.toml may name it: no shell replaces its `~`, a run does, and Spark does not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "homely.py").write_text("def f(record):\n    return record\n")
    line = submitted_line("--transform", "~/homely.py:f")
    assert line[line.index("--py-files") + 1].endswith(f",{tmp_path}/homely.py")
    assert line[line.index("--transform") + 1] == "homely:f"


@pytest.mark.parametrize("words", [[], ["--no-probes"], ["--probe-port", "0", "--probe-host", "0.0.0.0"], TIMES])
def test_options_of_probes_and_profiles_go_on_to_the_program_that_is_submitted(words: list[str]) -> None:
    """What the driver is told behind spark-submit is what was said before it; tiers not from its environment."""
    given = [*words, "--spans", "console", "--tiers", "profiles", "--profiles-topic", "my", "--profiles-timeout", "30"]
    params = run_context(*same_words("--master", "yarn", *given)).params
    assert {**params, "py_files": ()} == run_context("--master", "yarn", *given).params
    assert "prefix" in same_words("--master", "yarn"), "or the driver would take TIERS from the environment"
    assert "" not in same_words("--master", "yarn"), "which not every way into a cluster keeps"


def test_spark_submit_gets_the_checks_that_are_allowed() -> None:
    words = same_words("--master", "yarn", "--allow", "group-members", "--allow", "brokers-alike")
    assert settings_of(run_context(*words).params).allow == {"group-members", "brokers-alike"}


def test_a_submitted_run_has_every_other_setting_of_the_run() -> None:
    """What is forgotten here is a default where Spark runs the driver. Crash options are not passed on."""
    given = {"--bootstrap": "k:1", "--input": "i", "--output": "o", "--dead-letter": "d", "--group": "g"}
    given |= {"--transform": "pipeline.profiles:check_profile", "--on-error": "dead-letter", "--also-output": "more"}
    given |= {"--master": "yarn", "--reader": "connector", "--lease": "11", "--transaction-bytes": "2048"}
    given |= {"--read-ahead-bytes": "2097152", "--lanes": "3", "--max-records-per-transaction": "7"}
    given |= {"--transaction-timeout": "61", "--poll-interval": "0.2", "--patience": "121", "--max-rejected": "0.5"}
    given |= {"--blocked-patience": "1201", "--max-record-bytes": "1001", "--max-record-depth": "101"}
    given |= {"--on-missing-position": "restore", "--journal": "/j", "--allow": "group-members"}
    given |= {"--claim-interval": "1.5", "--client-id": "me", "--claims": "c"}
    words = [word for pair in given.items() for word in pair] + ["--follow", "--stand-by"]
    settings = settings_of(run_context(*words).params)
    submitted = same_words(*words, "--crash-prob", "1")
    assert replace(settings_of(run_context(*submitted).params), spark=settings.spark) == settings
    elsewhere = {"--share", "--conf", "--py-files", "--jvm-dir", "--verbose", "--config", "--client-config"}
    names = {option.opts[0] for option in run_options(click.Command("run")).params}
    assert {name for name in names - {*submitted} if not name.startswith("--crash")} <= elsewhere


def test_a_submitted_run_has_the_settings_of_spark_that_were_given() -> None:
    """Its driver set its own over those of spark-submit, so `--conf spark.ui.enabled=true` had no effect."""
    given = {"spark.app.name": "nightly", "spark.ui.enabled": "true", "spark.executor.memory": "2g"}
    given |= {"spark.driver.extraJavaOptions": "-Da=b"}
    words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    line = submitted_line(*words)
    assert given.items() <= dict(word.split("=", 1) for word in line if word.startswith("spark.")).items()
    assert line[line.index("--name") + 1] == "nightly"
    driver = settings_of(run_context(*same_words("--master", "yarn", *words)).params).spark.conf
    assert driver == {"spark.app.name": "nightly", "spark.ui.enabled": "true"}


def test_the_set_up_command_tells_what_it_did(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As JSON for scripts, and as one line for people; Spark's launcher is asked how it starts Java."""
    head = """
import sys
if "-version" in sys.argv:
    sys.exit(print('openjdk version "21"', file=sys.stderr))
"""
    launcher = 'print("java", "-cp", "x", "--add-opens=a/b=ALL-UNNAMED", "-Da=b", "Main", sep="\\0", end="")\n'
    executable(tmp_path / "home/bin/java", head + launcher)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    arguments = ["setup", "--jvm-dir", str(tmp_path / "place"), "--from", str(source)]
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", [*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["fetched"], report["jars"], report["bytes"]) == (True, sorted(JARS), 6)
    assert (tmp_path / "place" / "java-options").read_text() == "--add-opens=a/b=ALL-UNNAMED\n-Da=b\n"
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", arguments) == 0
    assert "2 jars, 0.0 MB, already there, checked" in capsys.readouterr().out
    executable(tmp_path / "home/bin/java", f"{head}{launcher}sys.exit(1)\n")
    assert exit_code_of(PROGRAMS["pipeline"], "pipeline", arguments) == 0
    assert not (tmp_path / "place" / "java-options").exists(), "another version's: the launcher starts Java, then"


TEXT = (ROOT / "Dockerfile").read_text()
Steps = list[tuple[str, str]]


def stages(text: str) -> list[Steps]:
    instructions: list[Steps] = []
    for one in DockerfileParser(fileobj=io.BytesIO(text.encode())).structure:
        if one["instruction"] == "FROM":
            instructions.append([])
        if one["instruction"] != "COMMENT":
            instructions[-1].append((one["instruction"], one["value"]))
    return instructions


def copied(text: str) -> set[str]:
    values = [value.split() for stage in stages(text) for name, value in stage if name == "COPY"]
    return {word for words in values if not words[0].startswith("--from") for word in words[:-1]}


def faults(text: str) -> list[str]:
    """What would make the image unsafe, or deaf to signals; pure, so that it can be shown to fail."""
    last = stages(text)[-1]
    names, settings = [name for name, _ in last], dict(last)
    user = settings.get("USER", "root")
    wrong = [f"{word} is not in the repository" for word in copied(text) if not (ROOT / word).exists()]
    wrong += [f"{stage[0][1]} has no version" for stage in stages(text) if not re.match(r"[\w./-]+:\d", stage[0][1])]
    if not user.split(":")[0].isdigit() or int(user.split(":")[0]) == 0:
        wrong.append(f"runs as {user}; Kubernetes' runAsNonRoot needs a number that is not 0")
    if "USER" in names and "RUN" in names[names.index("USER") :]:
        wrong.append("runs a step of the build after USER")
    shells = [name for name in ("ENTRYPOINT", "CMD") if not words(settings[name])]
    wrong += [f"{name} is a shell's, which keeps signals to itself" for name in shells]
    if "latest" in text or "ADD" in names:
        wrong.append("takes what it can't know")
    return wrong


def words(value: str) -> Sequence[str]:
    try:
        parsed = json.loads(value)
    except ValueError:
        return []
    return parsed if isinstance(parsed, list) else []


def test_the_image_is_built_from_what_is_there_and_runs_as_nobody() -> None:
    assert faults(TEXT) == []


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("USER 10001", "USER root", "runs as root"),
        ("USER 10001\n", "", "runs as root"),
        ("COPY pipeline ", "COPY pipelines ", "pipelines is not in the repository"),
        ('["tini", "--", "brew-pipeline"]', "brew-pipeline", "ENTRYPOINT is a shell's"),
        ("python:3.11-slim-bookworm\n#", "python\n#", "python has no version"),
        ("EXPOSE", "RUN true\nEXPOSE", "runs a step of the build after USER"),
    ],
)
def test_a_dockerfile_that_is_wrong_is_caught(right: str, wrong: str, expected: str) -> None:
    assert right in TEXT
    assert [one for one in faults(TEXT.replace(right, wrong, 1)) if expected in one]


def test_every_package_of_the_wheel_is_copied_and_the_builds_context_holds_nothing_else() -> None:
    """No state, no secret and no test of this folder gets into a layer."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= copied(TEXT)
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied(TEXT)


def test_signals_health_and_jars_meet_the_programs() -> None:
    last = stages(TEXT)[-1]
    settings = dict(last)
    tini, separator, program = words(settings["ENTRYPOINT"])
    assert (tini, separator) == ("tini", "--")
    assert program in PROJECT["scripts"]
    assert tini in " ".join(value for name, value in last if name == "RUN")
    assert settings["EXPOSE"] == str(probes.PORT)
    environment = " ".join(value for name, value in last if name == "ENV")
    assert f"{dependencies.VARIABLE}=" in environment
    assert f"PROBE_PORT={probes.PORT}" in environment
    major = re.search(r"openjdk-(\d+)-jre-headless", TEXT)
    assert major is not None
    assert int(major[1]) >= 17


def test_the_health_check_asks_the_port_that_the_run_was_given() -> None:
    """On the host's network the default port may be that of another container's run."""
    asked = []

    class Probes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    health = words(dict(stages(TEXT)[-1])["HEALTHCHECK"].partition("CMD")[2].strip())
    with HTTPServer(("127.0.0.1", 0), Probes) as server:
        server.timeout = 20
        environment = {**os.environ, "PROBE_PORT": str(server.server_port)}
        with subprocess.Popen([sys.executable, *health[1:]], env=environment) as check:
            server.handle_request()
    assert (check.returncode, asked) == (0, ["/livez"])


def _image(tmp_path: Path, engine: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "ENGINE": engine}
    line = [str(ROOT / "scripts/image.sh")]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_without_an_engine_it_says_what_to_do(tmp_path: Path) -> None:
    """One that is there and does not answer is none either."""
    executable(tmp_path / "deaf", "exit 1", "/bin/sh")
    ran = _image(tmp_path, "deaf no-such-engine")
    assert ran.returncode == 3
    assert "no container engine responds (tried: deaf no-such-engine)" in ran.stderr
    assert f"docker build --tag brew:{PROJECT['version']} ." in ran.stderr


def test_an_engine_that_answers_builds_and_tries_the_image(tmp_path: Path) -> None:
    """Tagged with the version, then asked for it; in the format of Docker, which keeps the health check."""
    calls = tmp_path / "calls"
    engine = f"""import json, os, sys
arguments = [*sys.argv[1:], os.environ.get("BUILDAH_FORMAT")]
open({str(calls)!r}, "a").write(json.dumps(arguments) + "\\n")
"""
    executable(tmp_path / "engine", engine)
    ran = _image(tmp_path, "engine")
    assert ran.returncode == 0, ran.stderr
    *before, (*built, form), (*tried, _) = map(json.loads, calls.read_text().splitlines())
    name = f"brew:{PROJECT['version']}"
    base = dict(stages(TEXT)[0])["FROM"].partition(" ")[0]
    assert [words[:-1] for words in before] == [["info"], ["info"], ["image", "inspect", base]]
    assert (built[:3], built[-1], form) == (["build", "--tag", name], ".", "docker")
    assert tried == ["run", "--rm", name, "--version"]


# The configuration reference.


def test_the_reference_says_what_the_programs_say() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make reference` and look at what changed"


def test_an_option_is_told_with_limits_variables_and_default() -> None:
    """Limits are those that the settings hold, found by asking them for too much."""
    rows = {row[0]: row[1:] for row in tables(reference.page(), "pipeline run")[0]}
    assert rows["--lanes"][:2] == ["integer, 1 to 64", "2"]
    assert rows["--transaction-bytes"][0] == "integer, 1024 to 1073741824"
    assert rows["--profiles-timeout"][0] == "number, 1 to 3600"
    assert rows["--claim-interval"][0].startswith("number, ")
    assert rows["--bootstrap"][1:4] == ["localhost:9092", "BOOTSTRAP", "BOOTSTRAP"]
    assert rows["--crash-point"][3] == "CRASH_POINT"


def test_each_command_of_brew_is_told_with_its_long_name() -> None:
    rows = tables(reference.page(), "brew")[0]
    pairs = [pair for _, short, long in rows for pair in zip(_words(short), _words(long), strict=False)]
    assert [short for short, _ in pairs if short] == [f"brew {name}" for name in reference.BREW]
    assert {("brew lag", "pipeline lag"), ("brew verify", "proof verify"), ("brew sandbox", "sandbox")} <= set(pairs)
    assert "proof replay" in rows[-1][-1]


def _words(cell: str) -> list[str]:
    return [word.strip("` ") for word in cell.split(",")]


def _names_asked_for(source: str) -> Iterator[str]:
    """Literal names in `os.environ[...]`, its `get(...)` and `setdefault(...)`, and `... in os.environ`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "setdefault"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[ast.Attribute(attr="environ")]):
                yield name


def test_every_variable_that_the_code_or_make_asks_for_is_told_in_words() -> None:
    """What Spark and its driver say to each other is nobody's setting."""
    sources = [file.read_text() for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    read = {name for source in sources for name in _names_asked_for(source)}
    documented = {row[0] for row in tables(reference.page(), "Environment")[0]}
    assert {name for name in read if not name.startswith("PYSPARK_GATEWAY_")} - documented == set()
    assert set(reference.ENVIRONMENT) <= read
    rows = {row[0]: row[1] for row in tables(reference.page(), "Make variables")[0]}
    assert [name for name, words in rows.items() if not words.strip()] == []
    assert set(reference.MAKE) <= set(rows)


# The site.


def _site(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    line = [str(root / "scripts/docs.sh"), str(out)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


def test_the_site_holds_every_page_and_asks_no_network(tmp_path: Path) -> None:
    """Strict: a dead link or anchor would have ended the build."""
    ran = _site(ROOT, tmp_path)
    assert ran.returncode == 0, ran.stderr
    pages = {file.relative_to(ROOT) for file in (ROOT / "docs").rglob("*.md")}
    wanted = {page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html") for page in pages}
    built = {file.relative_to(tmp_path) for file in tmp_path.rglob("*.html")}
    assert sorted(map(str, wanted - built)) == []
    index = (tmp_path / "index.html").read_text()
    assert "docs/reference/configuration.html" in index
    sources = r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//"""
    loaded = re.compile(sources + r"""|<link[^>]*href=["']?https?://[^>]*stylesheet""")
    assert [name for name in built if loaded.search((tmp_path / name).read_text())] == []


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for folder in ("docs/decisions", "benchmarks", "models"):
        (copy / folder).mkdir(parents=True)
    for name in ("mkdocs.yml", "docs/nav.yml", "LICENSE", "scripts/docs.sh"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        (copy / name).write_text("# A page\n")
    (copy / "README.md").write_text("# A page\n\n[gone](docs/GONE.md)\n")
    ran = _site(copy, tmp_path / "site")
    assert ran.returncode != 0
    assert "docs/GONE.md" in ran.stderr
