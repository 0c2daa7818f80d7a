"""Command lines for the JVM parts."""

from pathlib import Path

import pytest

from brew.errors import Refused, UsageError
from sandbox.jvm import TOOLS, Jvm


def test_missing_jars_are_refused_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    """A clone where `make setup` has not run yet says so in one sentence."""
    with pytest.raises(Refused, match="make setup"):
        Jvm(tmp_path).command("kafka.Kafka", [])


def test_the_class_path_has_one_order(tmp_path: Path) -> None:
    """A class-data archive fits the class path it was made with, and no other order of the same jars."""
    (tmp_path / "kafka").mkdir()
    for name in ("b.jar", "a.jar", "c.jar"):
        (tmp_path / "kafka" / name).touch()
    assert [Path(jar).name for jar in Jvm(tmp_path).class_path().split(":")] == ["a.jar", "b.jar", "c.jar"]


def test_an_archive_is_named_only_when_it_exists(tmp_path: Path) -> None:
    """A missing archive makes a start slower, never impossible."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "a.jar").touch()
    jvm = Jvm(tmp_path)
    assert not any("SharedArchiveFile" in word for word in jvm.command("kafka.Kafka", []))
    jvm.archive.touch()
    assert f"-XX:SharedArchiveFile={jvm.archive}" in jvm.command("kafka.Kafka", [])


def test_an_unknown_tool_is_wrong_usage_and_the_known_ones_are_named(tmp_path: Path) -> None:
    """Nobody has to look up which tools there are."""
    with pytest.raises(UsageError) as refusal:
        Jvm(tmp_path).tool("kafka-nothing", [])
    assert all(name in str(refusal.value) for name in TOOLS)
