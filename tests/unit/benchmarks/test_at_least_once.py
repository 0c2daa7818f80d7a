"""The benchmark's run without transactions: a worker that got its settings would otherwise measure the real ones."""

from __future__ import annotations

import pickle

import at_least_once
import pytest

import brew.attempt
import brew.driver.run
from brew.connection import Connection
from brew.kafka.transaction import TransactionSettings


def test_whoever_unpickles_the_settings_writes_without_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brew.attempt, "KafkaTransaction", brew.attempt.KafkaTransaction)  # restored afterwards
    values = (Connection("localhost:1"), "g", 30.0, 1_000)
    received = pickle.loads(pickle.dumps(at_least_once._Settings(*values)))
    assert received == TransactionSettings(*values)
    assert brew.attempt.KafkaTransaction is at_least_once.OutputThenOffsets


def test_a_run_takes_its_settings_from_where_the_benchmark_replaces_them() -> None:
    assert brew.driver.run.TransactionSettings is TransactionSettings
