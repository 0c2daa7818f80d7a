"""When the driver's JVM is started by ourselves, and when Spark's own launcher is left to it."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
from pyspark import SparkConf

from brew.errors import Refused
from brew.settings import SparkSettings
from brew.spark import gateway
from brew.spark.session import spark_conf


@pytest.fixture
def jvm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / gateway.OPTIONS).write_text("--add-opens=java.base/java.nio=ALL-UNNAMED\n-Dfrom=launcher\n")
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "connector.jar").touch()
    for name in gateway._LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return str(tmp_path)


def command(settings: SparkSettings) -> list[str] | None:
    return gateway._command(SparkConf(loadDefaults=False).setAll(list(spark_conf(settings).items())), settings)


def test_a_local_driver_gets_what_the_launcher_would_have_given_it(jvm_dir: str) -> None:
    """Class path, memory, our options and Spark's, none of them empty."""
    words = command(SparkSettings("local[2]", jvm_dir))
    assert words is not None
    assert words[words.index("-cp") + 1].startswith(f"{jvm_dir}/spark/connector.jar:")
    assert {"-Xmx1g", "-XX:+UseSerialGC", "-Dfrom=launcher"} <= set(words)
    assert "" not in words
    assert words[-1].endswith("PythonGatewayServer")


@pytest.mark.parametrize("name", sorted(gateway._LAUNCHER_VARIABLES))
def test_whoever_speaks_to_spark_by_its_environment_is_heard(
    jvm_dir: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under spark-submit the JVM runs already, and a second one would be a second Spark."""
    monkeypatch.setenv(name, "1")
    assert command(SparkSettings("local[2]", jvm_dir)) is None


def test_settings_of_the_driver_and_other_masters_are_left_to_spark(jvm_dir: str) -> None:
    assert command(SparkSettings("local[2]", jvm_dir, {"spark.driver.memory": "2g"})) is None
    assert command(SparkSettings("local-cluster[2,1,1024]", jvm_dir)) is None
    assert command(SparkSettings("local[2]", None)) is None


def test_a_java_home_without_java_is_one_sentence(jvm_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    words = command(SparkSettings("local[2]", jvm_dir))
    assert words is not None
    with pytest.raises(Refused, match="set JAVA_HOME"):
        gateway._launch(words, io.BytesIO())


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            "Failed: x\n\tat a\nCaused by: y\n\tat b\nCaused by: no host z\n\tat c\n\t... 11 more",
            "no host z",
        ),
        ("Unrecognized option: -Z\nError: Could not create the Java Virtual Machine.", "Error: Could not create"),
        ("", "Java gateway process exited"),
    ],
)
def test_a_jvm_that_ends_at_once_is_told_by_its_innermost_cause(
    jvm_dir: str, printed: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the end of a trace, which says how many lines were left out."""
    home = Path(jvm_dir, "home")
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").write_text(f"#!{sys.executable}\nimport sys; sys.exit({printed!r} or 1)\n")
    (home / "bin/java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    settings = SparkSettings("local[2]", jvm_dir)
    conf = SparkConf(loadDefaults=False).setAll(list(spark_conf(settings).items()))
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    with pytest.raises(Refused, match=f"did not start: .*{told}.*; try --verbose"):
        gateway.start(conf, settings)


def test_a_call_that_breaks_off_leaves_no_trace_but_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """py4j logs it to the root logger, and raises. What others log there stays, and with --verbose all of it."""
    monkeypatch.setattr(gateway, "launch_gateway", lambda *_: None)
    root, nowhere = logging.getLogger(), str(tmp_path)
    monkeypatch.setattr(root, "filters", [])  # a test before this one may have started Spark in this process
    for settings, kept in ((SparkSettings(verbose=True), 2), (SparkSettings(jvm_dir=nowhere), 1)):
        caplog.clear()
        try:
            gateway.start(SparkConf(loadDefaults=False), settings)
            root.error("Exception while sending command.")
            root.error("something else")
        finally:
            root.removeFilter(gateway._is_not_broken_call)
        assert len(caplog.records) == kept
