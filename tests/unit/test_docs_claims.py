"""docs/CLAIMS.md says what the code says: messages, limits, hash, states, answers, numbers."""

from __future__ import annotations

import re

from harness.pages import ROOT, column, tables

from brew import names
from brew.claims import messages
from brew.claims.member import WINDOW, fair_counts
from brew.claims.messages import LIMITS, TYPES, VERSION
from brew.claims.state import PARTIAL_MS, SNAPSHOT_MS, SNAPSHOT_RECORDS, RecordEffect, Status, status

CLAIMS = (ROOT / "docs/CLAIMS.md").read_text()


def test_the_topic_is_made_as_the_page_says() -> None:
    """Name, partitions, configuration."""
    assert f"`{names.CLAIMS_TOPIC}`" in CLAIMS
    told = {row[0]: row[1] for row in tables(CLAIMS, "Log")[0]}
    assert told == {"partitions": str(messages.PARTITIONS), **messages.CONFIG}


def test_the_hash_of_the_page_is_the_codes() -> None:
    """Another implementation can check itself by these."""
    for place, *homes in tables(CLAIMS, "Log")[1]:
        topic, _, partition = place.rpartition(":")
        assert [messages.coordinating_partition(topic, int(partition), n) for n in (8, 3)] == [int(h) for h in homes]


def test_the_messages_are_those_of_the_page() -> None:
    """Types and fields, in order."""
    told = [(name, tuple(fields.split())) for name, fields, _ in tables(CLAIMS, "Messages")[0]]
    assert told == [(name, made._fields) for name, made in TYPES.items()]
    assert f"`v` ({VERSION})" in CLAIMS


def test_every_field_is_told_with_its_limits() -> None:
    """The numbers of the page are the last good ones."""
    limits = {row[0]: row[2] for row in tables(CLAIMS, "Messages")[1]}
    assert list(limits) == list(LIMITS)
    for field, text in limits.items():
        found = [int(number) for number in re.findall(r"-?\d+", text)]
        of_text = field.endswith("_id")
        for number, beyond in zip(found, (-1, 1), strict=False):
            good, bad = ("x" * number, "x" * (number + beyond)) if of_text else (number, number + beyond)
            assert LIMITS[field](good), (field, number)
            assert not LIMITS[field](bad), (field, number)


def test_states_and_answers_are_those_of_the_code() -> None:
    """All of them, and in the same order; the bounds between states are one and two intervals."""
    assert column(CLAIMS, "Time") == [str(one) for one in Status]
    assert [status(0, 10, age) for age in (9, 10, 20, 21)] == [*Status][:1] + [Status.UNKNOWN] * 2 + [Status.STALE]
    assert sorted(column(CLAIMS, "Fold")) == sorted(str(one) for one in RecordEffect)


def test_the_numbers_of_snapshots_and_newcomers_are_those_of_the_code() -> None:
    """Records, milliseconds, and how long a log without its begin counts as partial."""
    assert column(CLAIMS, "Snapshots", at=1) == [str(SNAPSHOT_RECORDS), str(SNAPSHOT_MS)]
    assert f"{PARTIAL_MS} ms" in CLAIMS
    assert WINDOW > SNAPSHOT_RECORDS
    for name in ("seats", "members", "pauses"):
        assert f"`{name}`" in CLAIMS
    assert messages.SNAPSHOT_KEY == b"Snapshot"


def test_the_shares_are_dealt_as_the_page_says() -> None:
    """Those that hold the most may hold one more; equal ones by their names."""
    assert fair_counts({"a": 0, "b": 2, "c": 3}, 5) == {"c": 2, "b": 2, "a": 1}
    assert fair_counts({"b": 0, "a": 0}, 3) == {"a": 2, "b": 1}
