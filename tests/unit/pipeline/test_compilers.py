"""Which of Java's compilers a run's JVM is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from harness.pipeline import run_command, settings_of

from brew.driver.run import PreflightResult
from brew.kafka.transaction import TransactionSettings
from brew.settings import Compilers, Reader, SparkSettings
from brew.spark.session import spark_conf


@pytest.mark.parametrize(
    ("reader", "follow", "backlog", "compilers"),
    [
        (Reader.CONNECTOR, False, 1_499_999, Compilers.FIRST),
        (Reader.CONNECTOR, False, 1_500_000, Compilers.SECOND_LATE),
        (Reader.CONNECTOR, True, 0, Compilers.BOTH),
        (Reader.CONNECTOR, True, 1_500_000, Compilers.BOTH),
        (Reader.DIRECT, False, 1_500_000, Compilers.FIRST),
        (Reader.DIRECT, True, 0, Compilers.FIRST),
    ],
)
def test_a_run_has_the_compilers_that_pay(reader: Reader, *, follow: bool, backlog: int, compilers: Compilers) -> None:
    """A following run lives long enough for both; a long drain wants the second for its loops alone."""
    with run_command.make_context("run", ["--master", "local[2]"]) as context:
        settings = replace(settings_of(context.params), reader=reader, follow=follow)
    transaction = TransactionSettings(settings.connection, settings.group, 60.0)
    assert PreflightResult({}, None, settings, 1, transaction, backlog).compilers is compilers


@pytest.mark.parametrize(
    ("compilers", "has"),
    [(Compilers.FIRST, "-XX:TieredStopAtLevel=1"), (Compilers.SECOND_LATE, "-XX:Tier4"), (Compilers.BOTH, None)],
)
def test_the_jvm_is_told(tmp_path: Path, compilers: Compilers, has: str | None) -> None:
    """Both is what Java does by itself."""
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "connector.jar").touch()
    options = spark_conf(SparkSettings("local[2]", str(tmp_path)), compilers)["spark.driver.extraJavaOptions"]
    assert ("-XX:Tier" in options) is (has is not None)
    assert has is None or has in options
