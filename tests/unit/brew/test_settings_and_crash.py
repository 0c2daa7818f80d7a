"""Settings are refused together at construction; a crash injector is pure."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest

from brew import options
from brew.connection import Connection
from brew.errors import UsageError
from brew.fault_injection import CrashInjector, message
from brew.names import CrashMode, CrashPoint
from brew.offsets import OffsetRange
from brew.settings import CrashSettings, Limits, PipelineSettings, Reader, SparkSettings
from pipeline.__main__ import run_command, settings_of


def settings(**more: object) -> PipelineSettings:
    return PipelineSettings(Connection("b:1"), more.pop("input", "in"), "out", "dead", more.pop("group", "g"), **more)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"input": "no topic"}, "INPUT_TOPIC"),
        ({"input": "out"}, "three topics"),
        ({"group": ""}, "GROUP_ID"),
        ({"group": "g\udcff"}, r"GROUP_ID \(--group\) is 'g\\udcff': a group's name has neither NUL"),
        ({"group": "g\0h"}, "neither NUL"),
        ({"lanes": 0}, "--lanes is 0: it has to be between 1 and 64"),
        ({"max_records_per_transaction": 0}, "--max-records-per-transaction"),
        ({"transaction_timeout_s": 901}, "--transaction-timeout"),
        ({"limits": Limits(max_depth=251)}, "--max-record-depth"),
    ],
)
def test_a_value_that_cannot_be_names_itself_and_its_limit(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        settings(**wrong)


def test_a_run_that_names_no_reader_reads_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line as in code (docs/decisions/0011); the environment and the option name another."""
    monkeypatch.delenv("READER", raising=False)
    chosen = []
    for words in ([], ["--reader", "connector"]):
        with run_command.make_context("run", words) as context:
            chosen.append(settings_of(context.params).reader)
    assert chosen == [Reader.DIRECT, Reader.CONNECTOR]
    assert settings().reader is Reader.DIRECT


# Each option with a value that is nobody's default, and no other option's.
EACH = {
    "input": "a",
    "output": "b",
    "dead_letter": "c",
    "group": "d",
    "on_error": "dead-letter",
    "reader": "connector",
    "direct.lease_s": 11.0,
    "direct.transaction_bytes": 1200,
    "direct.read_ahead_bytes": 1_300_000,
    "follow": True,
    "lanes": 14,
    "max_records_per_transaction": 15,
    "transaction_timeout_s": 16.0,
    "poll_interval_s": 17.0,
    "patience_s": 18.0,
    "blocked_patience_s": 19.0,
    "limits.max_bytes": 20,
    "limits.max_depth": 21,
    "max_rejected": 0.22,
    "on_missing_position": "restore",
    "crash.probability": 0.23,
    "crash.point": "after-commit",
    "crash.mode": "worker",
    "crash.seed": 24,
    "journal": "j",
    "transform": "clicks:f",
    "spark.master": "local[25]",
    "spark.verbose": True,
    "spark.jvm_dir": str(Path("jvm").resolve()),
    "profiles.topic": "e",
    "profiles.load_timeout_s": 26.0,
}
FLAGS = {
    "direct.lease_s": "lease",
    "transaction_timeout_s": "transaction-timeout",
    "poll_interval_s": "poll-interval",
    "patience_s": "patience",
    "blocked_patience_s": "blocked-patience",
    "limits.max_bytes": "max-record-bytes",
    "limits.max_depth": "max-record-depth",
    "crash.probability": "crash-prob",
    "crash.point": "crash-point",
    "crash.mode": "crash-mode",
    "crash.seed": "crash-seed",
    "profiles.topic": "profiles-topic",
    "profiles.load_timeout_s": "profiles-timeout",
}
CLAIMS = {"interval_s": 1.5, "client_id": "me", "claims": "f"}


@pytest.mark.parametrize("several", ["stand_by", "share"])
def test_each_option_sets_what_it_names_and_nothing_else(several: str) -> None:
    """Two of one type can change places, and no check of either's range finds it."""
    words = [f"--{several.replace('_', '-')}", "--claim-interval", "1.5", "--client-id", "me", "--claims", "f"]
    words += ["--tiers", "profiles", "--also-output", "g", "--allow", "input-access", "--conf", "spark.x=y=z"]
    for name, value in EACH.items():
        flag = FLAGS.get(name, name.rpartition(".")[2].replace("_", "-"))
        words += [f"--{flag}", *([] if value is True else [str(value)])]
    found = options.settings_of(run_command.make_context("run", words).params)
    assert {name: attrgetter(name)(found) for name in EACH} == EACH
    assert {name: attrgetter(f"{several}.{name}")(found) for name in CLAIMS} == CLAIMS
    assert (found.stand_by is None) is (several == "share")
    assert (found.also_output, found.allow, found.spark.conf) == (("g",), {"input-access"}, {"spark.x": "y=z"})


@pytest.mark.parametrize("probability", [-0.1, 1.1, 7, float("nan")])
def test_a_crash_probability_outside_of_0_to_1_is_refused(probability: float) -> None:
    """CRASH_PROB=7 is a mistake, not certainty."""
    with pytest.raises(UsageError, match="CRASH_PROB"):
        CrashSettings(probability)


@pytest.mark.parametrize(
    ("master", "with_retries"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local[2,3]", "local[2,3]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("yarn", "yarn"),
    ],
)
def test_spark_masters_are_known_and_a_local_one_repeats_failed_tasks(master: str, with_retries: str) -> None:
    assert (SparkSettings(master).master, SparkSettings(master).master_with_retries) == (master, with_retries)


@pytest.mark.parametrize("master", ["locall", "local[0]", "spark://nohost", "mesos://x:1", ""])
def test_an_unknown_master_is_refused_before_a_jvm_starts(master: str) -> None:
    with pytest.raises(UsageError, match="MASTER"):
        SparkSettings(master)


def test_dice_follow_their_seed_and_probability() -> None:
    ranges = [OffsetRange("in", 0, i, i + 1) for i in range(1000)]

    def crashes() -> list[bool]:
        injector = CrashInjector(CrashSettings(0.3, seed=7))
        return [injector.next_crash(r) is not None for r in ranges]

    assert crashes() == crashes()
    assert 250 < sum(crashes()) < 350
    assert not any(CrashInjector(CrashSettings(0.0)).next_crash(r) for r in ranges)
    assert all(CrashInjector(CrashSettings(1.0)).next_crash(r) for r in ranges)


def test_a_workers_crash_strikes_a_ranges_start_once() -> None:
    injector = CrashInjector(CrashSettings(1.0, mode=CrashMode.WORKER))
    offered = OffsetRange("in", 0, 5, 9)
    assert injector.next_crash(offered) is not None
    assert injector.next_crash(offered) is None


def test_the_crash_line_has_the_agreed_words() -> None:
    assert message(CrashPoint.AFTER_FLUSH, 12, 0) == "💥 crash before commit: 12 records already in output log"
    assert "2 in the dead-letter log" in message(CrashPoint.AFTER_FLUSH, 12, 2)
    assert "after commit" in message(CrashPoint.AFTER_COMMIT, 12, 0)
    assert "outcome unknown" in message(CrashPoint.COMMIT_IN_FLIGHT, 12, 0)


def test_a_spark_setting_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="--conf"):
        settings_of(run_command.make_context("run", ["--conf", "spark.x"]).params)
