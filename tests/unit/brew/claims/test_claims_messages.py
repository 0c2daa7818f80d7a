"""The messages' bytes: read back whole, limits, versions, junk; and where they belong."""

from __future__ import annotations

import orjson
import pytest
from harness.claims import GROUP, START_MS, TOPIC, Shared, beat, claim, release
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.claims.log import Entry
from brew.claims.messages import (
    TYPES,
    UNKNOWN_ID,
    VERSION,
    WHOLE_TOPIC,
    ClaimingMessages,
    Message,
    ReleaseGroup,
    Snapshot,
    coordinating_partition,
    decode,
    encode,
)
from brew.claims.state import ClaimsView, RecordEffect, Table, table_from
from brew.errors import Refused, UsageError

ONE_OF_EACH: list[Message] = [
    beat("a", 7, 12, resume=True),
    beat("ä/:b", -1, partition=None),
    claim("a", WHOLE_TOPIC),
    release("a", 7, 12),
    ClaimingMessages("a", GROUP, TOPIC, 0, 500, 7),
    ReleaseGroup("admin", GROUP, START_MS),
    Snapshot("a", 5, START_MS, {"seats": [], "members": [], "pauses": []}),
]


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda one: type(one).__name__)
def test_a_message_is_read_back_whole(message: Message) -> None:
    """Ids with any characters, -1 and null among them; a new type gets its test."""
    assert decode(encode(message)[1]) == message
    assert type(decode(encode(message)[1])) is type(message)
    assert {type(one) for one in ONE_OF_EACH} == set(TYPES.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_id", ""),
        ("client_id", "x" * 256),
        ("group_id", 5),
        ("topic", "a b"),
        ("topic", ".."),
        ("partition", -2),
        ("partition", 1_000_001),
        ("partition", True),
        ("last_offset", -2),
        ("last_offset", 1.5),
        ("last_offset", 2**63),
        ("token", None),
        ("interval_ms", 49),
        ("interval_ms", 600_001),
        ("resume", 1),
    ],
)
def test_a_field_out_of_its_limits_is_not_written_and_not_believed(field: str, value: object) -> None:
    """The writer is told, the reader passes over it."""
    good = beat("a", 7)
    with pytest.raises(UsageError, match=field):
        encode(good._replace(**{field: value}))  # type: ignore[arg-type]
    assert decode(orjson.dumps({**orjson.loads(encode(good)[1]), field: value})) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"v":"1","type":"Heartbeat"}',
        b'{"v":0,"type":"Heartbeat"}',
        b'{"v":true}',
        b'{"v":1}',
        b'{"v":1,"type":null}',
        b'{"v":1,"type":"ReleaseGroup","client_id":"a","group_id":"g"}',
        b'{"v":1,"type":"ReleaseGroup","client_id":"a","group_id":"g","msg_expire_time":0,"x":1}',
    ],
)
def test_what_is_no_message_is_passed_over(value: bytes | None) -> None:
    """No reader stops at it, and no reader believes a part of it."""
    assert decode(value) is None


@pytest.mark.parametrize("change", [{"v": VERSION + 1}, {"type": "Handover"}])
def test_a_version_that_is_not_known_stops_the_reader(change: dict[str, object]) -> None:
    with pytest.raises(Refused, match="--claims"):
        decode(orjson.dumps({**orjson.loads(encode(claim("a"))[1]), **change}))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_break_the_reader(value: bytes) -> None:
    try:
        assert decode(value) is None
    except Refused as error:
        assert "version" in str(error)  # noqa: PT017 - one of three good ends


def test_a_message_in_the_wrong_partition_shows_that_partitions_were_added() -> None:
    shared = Shared(partitions=3)
    home = coordinating_partition(TOPIC, 0, 3)
    shared.write(claim("a"), home)
    view = ClaimsView([Table(), Table(), Table()])
    assert view.apply(shared.entries[home][0]) is RecordEffect.GRANTED
    with pytest.raises(Refused, match="partitions were added"):
        view.apply(shared.entries[home][0]._replace(partition=(home + 1) % 3))


def test_a_snapshot_from_the_future_is_no_snapshot_and_a_broken_one_is_refused() -> None:
    message = Snapshot("a", 10, START_MS, {"seats": [["g"]], "members": [], "pauses": []})
    entry = Entry(0, 9, START_MS, *encode(message))
    assert ClaimsView([Table()]).apply(entry) is RecordEffect.UNREADABLE
    with pytest.raises(Refused, match="can't be read"):
        table_from(message)


def test_a_claim_and_a_snapshot_of_version_1_have_no_topic_id() -> None:
    """A log of an earlier program stays readable."""
    fields = orjson.loads(encode(claim("a"))[1])
    del fields["topic_id"]
    assert decode(orjson.dumps(fields | {"v": 1})) == claim("a")
    assert decode(orjson.dumps(fields)) is None
    seats = [[GROUP, TOPIC, 0, "a", 3, START_MS, 1000, 7]]
    [owner] = table_from(Snapshot("a", 5, START_MS, {"seats": seats, "members": [], "pauses": []})).owners.values()
    assert (owner.position, owner.topic_id) == (7, UNKNOWN_ID)
