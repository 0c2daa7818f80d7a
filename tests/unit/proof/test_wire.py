"""The wire proxy: frames, rules, shapes and verdicts; pure, without a socket."""

from __future__ import annotations

import asyncio
import random
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Retriable, UsageError
from proof.wire import codec
from proof.wire.codec import Api, Details, Malformed, RequestHeader
from proof.wire.late import (
    Attempt,
    AttemptState,
    RecordPlacement,
    ReusingWriter,
    Try,
    _TryRun,
    anomalies,
    tally,
)
from proof.wire.rules import Action, CaughtFrame, DelayedChannel, NetworkConditions, Rule, Side, Trap

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, metadata, producer

FAR = ("broker.far.away", 19092)
NEAR = ("127.0.0.1", 40001)
TXN = "group:topic:0"


def request(kind: Any, version: int, **fields: Any) -> bytes:
    """A frame as another library (kafka-python) writes it: the oracle of these tests."""
    message = kind(version=version, **fields)
    message.with_header(correlation_id=77, client_id="somebody")
    return bytes(message.encode(header=True))


def reply(kind: Any, header: RequestHeader, **fields: Any) -> bytes:
    """A reply frame, header written by hand: kafka-python has none for servers."""
    message = kind(version=header.version, **fields)
    tags = b"\0" if kind.flexible_version_q(header.version) and header.api != Api.ApiVersions else b""
    return struct.pack(">i", header.correlation_id) + tags + bytes(message.encode())


def header_of(api: int, version: int) -> RequestHeader:
    return RequestHeader(api, version, 77, "somebody")


def each(api: int, kind: Any) -> list[Any]:
    versions = range(kind.min_version, min(kind.max_version, codec.NEWEST.get(api, kind.max_version)) + 1)
    return [pytest.param(api, kind, version, id=f"{api.name}-v{version}") for version in versions]


TITLES = (Api.InitProducerId, Api.AddOffsetsToTxn, Api.EndTxn, Api.TxnOffsetCommit)
REQUESTS = [one for api in TITLES for one in each(api, getattr(producer, f"{api.name}Request"))]


@pytest.mark.parametrize(("api", "kind", "version"), REQUESTS)
def test_a_request_of_a_transaction_is_read_in_every_version(api: int, kind: Any, version: int) -> None:
    more: dict[str, Any] = {
        Api.InitProducerId: {"transaction_timeout_ms": 1000},
        Api.AddOffsetsToTxn: {"group_id": "group"},
        Api.EndTxn: {"committed": True},
        Api.TxnOffsetCommit: {"group_id": "group", "generation_id": -1, "member_id": "", "group_instance_id": None},
    }[api]
    if api is Api.TxnOffsetCommit:
        topic = kind.TxnOffsetCommitRequestTopic
        offset = {"committed_offset": 42, "committed_leader_epoch": -1, "committed_metadata": ""}
        partition = topic.TxnOffsetCommitRequestPartition(partition_index=3, **offset)
        more["topics"] = [topic(name="topic", partitions=[partition])]
    frame = request(kind, version, transactional_id=TXN, producer_id=5, producer_epoch=6, **more)
    header = codec.request_header(frame)
    details = codec.request_details(header, frame)
    assert (header.api, header.version, header.correlation_id, header.client_id) == (api, version, 77, "somebody")
    assert details.transactional_id == TXN
    if api is not Api.InitProducerId or version >= 3:
        assert (details.producer_id, details.epoch) == (5, 6)
    if api is Api.EndTxn:
        assert details.committed is True
    if api is Api.TxnOffsetCommit:
        assert details.text == "partition 3 -> offset 42"


@pytest.mark.parametrize("version", range(4))
def test_partitions_added_by_a_client_are_read(version: int) -> None:
    """From version 4 on only brokers send the request, in another form: nothing is read of those."""
    kind = producer.AddPartitionsToTxnRequest
    topic = kind.AddPartitionsToTxnTopic(name="topic", partitions=[0])
    fields = {"transactional_id": TXN, "producer_id": 5, "producer_epoch": 6, "topics": [topic]}
    frame = request(kind, version, **{f"v3_and_below_{name}": value for name, value in fields.items()})
    details = codec.request_details(codec.request_header(frame), frame)
    assert (details.transactional_id, details.producer_id, details.epoch) == (TXN, 5, 6)


@pytest.mark.parametrize(
    ("api", "kind", "version"),
    [*each(Api.InitProducerId, producer.InitProducerIdResponse), *each(Api.EndTxn, producer.EndTxnResponse)],
)
def test_the_error_of_a_reply_is_read_in_every_version(api: int, kind: Any, version: int) -> None:
    """INVALID_PRODUCER_EPOCH is what the late frame has to be answered with."""
    header = header_of(api, version)
    frame = reply(kind, header, throttle_time_ms=0, error_code=47, producer_id=5, producer_epoch=6)
    assert codec.correlation_id(frame) == 77
    assert codec.reply_details(header, frame).error == 47


@pytest.mark.parametrize(("api", "kind", "version"), each(Api.TxnOffsetCommit, producer.TxnOffsetCommitResponse))
def test_the_first_error_of_many_partitions_is_read(api: int, kind: Any, version: int) -> None:
    topic = kind.TxnOffsetCommitResponseTopic
    partitions = [topic.TxnOffsetCommitResponsePartition(partition_index=n, error_code=47 * (n == 1)) for n in range(3)]
    header = header_of(api, version)
    frame = reply(kind, header, throttle_time_ms=0, topics=[topic(name="topic", partitions=partitions)])
    assert codec.reply_details(header, frame).error == 47


def _metadata(header: RequestHeader) -> bytes:
    kind = metadata.MetadataResponse
    broker = kind.MetadataResponseBroker(node_id=1, host=FAR[0], port=FAR[1], rack="r")
    other = kind.MetadataResponseBroker(node_id=2, host="b", port=2, rack=None)
    fields = {"throttle_time_ms": 0, "brokers": [broker, other], "cluster_id": "c", "controller_id": 1, "topics": []}
    return reply(kind, header, **fields)


def _coordinators(header: RequestHeader) -> bytes:
    kind = metadata.FindCoordinatorResponse
    if header.version < 4:
        flat = {"error_code": 0, "error_message": None, "node_id": 1, "host": FAR[0], "port": FAR[1]}
        return reply(kind, header, throttle_time_ms=0, **flat)
    fields = {"node_id": 1, "host": FAR[0], "port": FAR[1], "error_code": 0, "error_message": None}
    nobody = fields | {"node_id": -1, "host": "", "port": -1, "error_code": 15}
    coordinators = [kind.Coordinator(key="a", **fields), kind.Coordinator(key="b", **nobody)]
    return reply(kind, header, throttle_time_ms=0, coordinators=coordinators)


def _cluster(header: RequestHeader) -> bytes:
    kind = admin.DescribeClusterResponse
    broker = kind.DescribeClusterBroker(broker_id=1, host=FAR[0], port=FAR[1], rack=None, is_fenced=False)
    fields = {"error_code": 0, "error_message": None, "endpoint_type": 1, "cluster_id": "c", "controller_id": 1}
    return reply(kind, header, throttle_time_ms=0, brokers=[broker], **fields)


def _text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def _produced(header: RequestHeader) -> bytes:
    """Written by hand, after the schema: kafka-python, which reads it, is no oracle here."""
    partition = struct.pack(">ihqqq", 0, 6, -1, -1, -1) + b"\1" + b"\0" + b"\0"
    topic = (bytes(16) if header.version >= 13 else _text("t")) + b"\2" + partition + b"\0"
    endpoint = struct.pack(">i", 1) + _text(FAR[0]) + struct.pack(">i", FAR[1]) + b"\0\0"
    field = b"\2" + endpoint
    tags = b"\1\0" + bytes([len(field)]) + field
    return struct.pack(">i", 77) + b"\0" + b"\2" + topic + struct.pack(">i", 0) + tags


WITH_ADDRESSES = [
    *[pytest.param(Api.Metadata, v, _metadata, id=f"Metadata-v{v}") for v in range(14)],
    *[pytest.param(Api.FindCoordinator, v, _coordinators, id=f"FindCoordinator-v{v}") for v in range(7)],
    *[pytest.param(Api.DescribeCluster, v, _cluster, id=f"DescribeCluster-v{v}") for v in range(3)],
    *[pytest.param(Api.Produce, v, _produced, id=f"Produce-v{v}") for v in range(10, 14)],
]


@pytest.mark.parametrize(("api", "version", "make_reply"), WITH_ADDRESSES)
def test_every_address_is_exchanged_and_all_else_stays(api: int, version: int, make_reply: Any) -> None:
    """There and back again gives the same bytes; in between the far address is nowhere."""
    header = header_of(api, version)
    frame = make_reply(header)
    known = codec.addresses(header, frame)
    assert known[0] == (1, FAR)
    rewritten = codec.with_addresses(header, frame, lambda address: NEAR if address == FAR else address)
    assert FAR[0].encode() not in rewritten
    assert codec.addresses(header, rewritten) == [(1, NEAR), *known[1:]]
    assert codec.with_addresses(header, rewritten, lambda address: FAR if address == NEAR else address) == frame


@pytest.mark.parametrize("version", range(5))
def test_what_could_not_be_rewritten_is_not_offered(version: int) -> None:
    kind = metadata.ApiVersionsResponse
    offered = [(Api.Fetch, 4, 18), (Api.Metadata, 0, 13), (Api.ShareFetch, 1, 1), (999, 0, 3)]
    keys = [kind.ApiVersion(api_key=a, min_version=low, max_version=high) for a, low, high in offered]
    header = header_of(Api.ApiVersions, version)
    frame = reply(kind, header, error_code=0, api_keys=keys, throttle_time_ms=0)
    fewer = codec.without_unsupported_versions(header, frame)
    again = kind.decode(fewer, version=version, header=True)
    left = [(api.api_key, api.min_version, api.max_version) for api in again.api_keys]
    assert left == [(Api.Fetch, 4, 15), (Api.Metadata, 0, 13), (999, 0, 3)]
    assert Api.ShareFetch in codec.HIDDEN


def test_a_broker_that_does_not_know_the_version_answers_as_version_0() -> None:
    """KIP-511: the client asks again with what it was told."""
    frame = struct.pack(">ihi", 77, 35, 1) + struct.pack(">hhh", Api.ApiVersions, 0, 4)
    assert codec.without_unsupported_versions(header_of(Api.ApiVersions, 4), frame) == frame


@given(api=st.integers(61, 30_000), version=st.integers(0, 30), body=st.binary(max_size=200))
def test_unknown_requests_have_a_head_and_no_details(api: int, version: int, body: bytes) -> None:
    frame = struct.pack(">hhih", api, version, 7, 2) + b"me" + body
    header = codec.request_header(frame)
    assert (header.api, header.version, header.correlation_id, header.client_id) == (api, version, 7, "me")
    assert codec.request_details(header, frame) is codec.NO_DETAILS
    assert codec.reply_details(header, body) is codec.NO_DETAILS


@given(api=st.sampled_from(list(Api)), version=st.integers(0, 13), body=st.binary(max_size=120))
def test_broken_frames_are_malformed_or_without_details_and_nothing_else(api: int, version: int, body: bytes) -> None:
    """No other exception, no endless loop: the proxy has to outlive any bytes."""
    header = RequestHeader(api, version, 7, None)
    assert {type(codec.request_details(header, body)), type(codec.reply_details(header, body))} == {Details}
    if api in {Api.Metadata, Api.FindCoordinator, Api.DescribeCluster, Api.Produce}:
        _only_malformed(codec.addresses, header, body)
    if api is Api.ApiVersions:
        _only_malformed(codec.without_unsupported_versions, header, body)


@given(st.binary(max_size=9))
def test_less_than_a_head_is_no_request(frame: bytes) -> None:
    """Raw SASL tokens may look like that; they are passed on unread."""
    with pytest.raises(Malformed):
        codec.request_header(frame)


def _only_malformed(look: Any, header: RequestHeader, body: bytes) -> None:
    try:
        look(header, body)
    except Malformed as error:
        assert str(error)  # noqa: PT017 - Malformed is one of the two ways out


@pytest.mark.parametrize(
    ("code", "name"), [(0, "ok"), (47, "INVALID_PRODUCER_EPOCH"), (120, "TRANSACTION_ABORTABLE"), (9999, "error 9999")]
)
def test_errors_have_the_protocols_names(code: int, name: str) -> None:
    assert codec.error_name(code) == name


HEAD = RequestHeader(Api.EndTxn, 1, 7, "rdkafka")
COMMIT = Details("t", 1, 0, committed=True)
ABORT = Details("t", 1, 0, committed=False)


@pytest.fixture
def trap() -> Iterator[Callable[[Rule], Trap]]:
    loop = asyncio.new_event_loop()
    yield lambda rule: Trap(rule, 1, loop)
    loop.close()


def test_the_nth_frame_that_fits_is_taken_and_only_that_or_every_one(trap: Callable[[Rule], Trap]) -> None:
    """Counted from 1, frames that do not fit are not counted; `times` 0 is for ever."""
    third = trap(Rule(Api.EndTxn, nth=3, committed=True))
    fits = [third.takes(Side.REQUEST, HEAD, details) for details in (COMMIT, ABORT, COMMIT, COMMIT, COMMIT)]
    assert fits == [False, False, False, True, False]
    assert (third.seen, third.fired) == (4, 1)
    always = trap(Rule(Api.EndTxn, Action.DROP, times=0))
    assert all(always.takes(Side.REQUEST, HEAD, COMMIT) for _ in range(5))


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        *((Rule(Api.EndTxn), True), (Rule(Api.EndTxn, client_id="rdkafka"), True)),
        *((Rule(Api.Produce), False), (Rule(Api.EndTxn, side=Side.REPLY), False)),
        *((Rule(Api.EndTxn, transactional_id="u"), False), (Rule(Api.EndTxn, client_id="java"), False)),
        (Rule(Api.EndTxn, committed=False), False),
    ],
)
def test_every_field_of_a_rule_narrows_it(rule: Rule, *, fits: bool) -> None:
    assert rule.matches(Side.REQUEST, HEAD, COMMIT) is fits


@pytest.mark.parametrize("name", ["EndTxn", "end-txn", "26"])
def test_a_rule_is_read_from_json_by_the_protocols_names(name: str) -> None:
    document = {"api": name, "action": "cut", "side": "reply", "nth": 2}
    assert Rule.of(document) == Rule(Api.EndTxn, Action.CUT, Side.REPLY, nth=2)


@pytest.mark.parametrize("given", [{"api": "EndTxm"}, {"api": "EndTxn", "nth": 0}, {"api": 26, "x": 1}, {"times": 2}])
def test_a_rule_or_a_network_that_makes_no_sense_is_refused_before_a_proxy_starts(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Rule.of(given)
    with pytest.raises(UsageError):
        NetworkConditions(loss=2)


def test_what_a_rule_caught_is_handed_over_and_what_never_comes_ends_in_time(trap: Callable[[Rule], Trap]) -> None:
    end_txn = trap(Rule(Api.EndTxn))
    with pytest.raises(DeadlineExceeded, match="EndTxn"):
        end_txn.caught(Deadline(0.01))
    end_txn.catch(CaughtFrame(3, HEAD, COMMIT), lambda: None)
    assert end_txn.caught(Deadline(1)) == CaughtFrame(3, HEAD, COMMIT)


def test_a_slow_line_keeps_order_and_time() -> None:
    """20 ms +-10 ms, and 100 kB/s: 2,000 bytes take 20 ms more; the order of frames is never changed."""
    got: list[tuple[float, bytes]] = []

    async def nothing() -> None: ...

    async def send() -> float:
        sink: Any = SimpleNamespace(is_closing=lambda: False, close=lambda: None, drain=nothing, wait_closed=nothing)
        sink.write = lambda data: got.append((time.monotonic(), data))
        line = DelayedChannel(sink, random.Random(1))
        shape = NetworkConditions(latency_s=0.02, jitter_s=0.01, rate=100_000)
        began = time.monotonic()
        for number in range(20):
            await line.put(bytes([number]) * 100, shape)
        await line.close()
        return began

    began = asyncio.run(send())
    bodies = [(moment, data[0]) for moment, data in got if len(data) == 100]
    assert [number for _, number in bodies] == list(range(20))
    assert bodies[0][0] - began >= 0.01
    assert bodies[-1][0] - began >= 0.03


SEEN, UNSEEN = RecordPlacement(5, 1, 0, visible=True), RecordPlacement(5, 1, 0, visible=False)
TWICE = RecordPlacement(5, 1, 0, visible=True, copies=2)


@pytest.mark.parametrize(
    ("state", "places", "name"),
    [
        (AttemptState.COMMITTED, [SEEN, SEEN], None),
        (AttemptState.COMMITTED, [SEEN, UNSEEN], "lost-commit"),
        (AttemptState.COMMITTED, [UNSEEN, UNSEEN], "lost-commit"),
        (AttemptState.GIVEN_UP, [UNSEEN, UNSEEN], None),
        (AttemptState.GIVEN_UP, [SEEN, SEEN], "torn-txn"),
        (AttemptState.UNKNOWN, [SEEN, SEEN], None),
        (AttemptState.UNKNOWN, [UNSEEN, UNSEEN], None),
        (AttemptState.UNKNOWN, [SEEN, UNSEEN], "torn-txn"),
        (AttemptState.COMMITTED, [SEEN, TWICE], "duplicate-output"),
    ],
)
def test_a_transaction_is_visible_as_told(state: AttemptState, places: list[RecordPlacement], name: str | None) -> None:
    attempt = Attempt("second", ["a", "b"], 7 if state is AttemptState.COMMITTED else None, state)
    named = anomalies(Try(0, "late-commit", [attempt], position=7), dict(zip("ab", places, strict=True)))
    assert [one.name for one in named] == ([name] if name else [])


@pytest.mark.parametrize(("position", "name"), [(7, None), (6, "offset-regression"), (8, "offset-ahead")])
def test_the_position_is_the_last_acknowledged_one(position: int, name: str | None) -> None:
    attempt = Attempt("first", ["a"], 7, AttemptState.COMMITTED)
    named = anomalies(Try(0, "late-offsets", [attempt], position=position), {"a": SEEN})
    assert [one.name for one in named] == ([name] if name else [])


@pytest.mark.parametrize(
    ("state", "place", "position", "name"),
    [
        (AttemptState.UNKNOWN, SEEN, 8, None),
        (AttemptState.UNKNOWN, SEEN, 7, "offset-regression"),
        (AttemptState.UNKNOWN, SEEN, None, "offset-regression"),
        (AttemptState.UNKNOWN, UNSEEN, 7, None),
        (AttemptState.UNKNOWN, UNSEEN, 8, "offset-ahead"),
        (AttemptState.UNKNOWN, UNSEEN, 6, "offset-regression"),
        (AttemptState.GIVEN_UP, UNSEEN, 7, None),
        (AttemptState.GIVEN_UP, UNSEEN, 8, "offset-ahead"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_records_and_offset_of_a_commit_without_an_answer_go_together(
    first: bool, state: AttemptState, place: RecordPlacement, position: int | None, name: str | None
) -> None:
    """Behind an acknowledged one, or alone: then nothing is known of a position below the try's own."""
    attempts = [Attempt("first", ["a"], 7, AttemptState.COMMITTED), Attempt("second", ["b"], 8, state)][1 - first :]
    named = anomalies(Try(0, "late-offsets", attempts, position=position), {"a": SEEN, "b": place})
    alone = not first and place is UNSEEN and position != 8
    assert [one.name for one in named] == ([name] if name and not alone else [])


def test_records_of_a_write_that_failed_are_looked_for_too() -> None:
    """The client gave up on them; they may have been delivered."""

    class Failing(ReusingWriter):
        def __init__(self) -> None:
            """Do nothing: there is no producer."""

        def begin(self) -> None:
            """Do nothing."""

        def write(self, records: list[tuple[str, bytes]]) -> None:
            raise Retriable(f"no answer for {len(records)} records")

    run = _TryRun(Failing(), 3, "late-commit")
    with pytest.raises(Retriable):
        run.begin("first", 2)
    assert [attempt.keys for attempt in run.result.attempts] == [["3/first/0", "3/first/1"]]
    assert [one.name for one in anomalies(run.result, {"3/first/1": SEEN})] == ["torn-txn"]


def test_a_try_whose_late_frame_found_no_answer_proves_nothing() -> None:
    clean = Attempt("first", ["a"], 7, AttemptState.COMMITTED)
    answers = ((47, 7, ""), (None, 7, ""), (47, 7, "time-out"), (0, 6, ""))
    tries = [Try(n, "s", [clean], late, position, why) for n, (late, position, why) in enumerate(answers)]
    counted = tally(tries, {"a": SEEN})
    assert (counted.tries, counted.clean, counted.inconclusive, counted.broken) == (4, 1, 2, 1)
    assert counted.late == {"INVALID_PRODUCER_EPOCH": 2, "no answer": 1, "ok": 1}
