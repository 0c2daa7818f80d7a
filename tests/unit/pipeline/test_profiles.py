"""Customers' profiles: the table, and the process that holds it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from harness.fakes import Broker, FakeTransaction, log_record
from hypothesis import given
from hypothesis import strategies as st

from brew import testing
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal, Refused, Retriable, UsageError
from brew.kafka import topic_reader, topics
from brew.kafka.topics import Topic
from brew.offsets import LogOffsets, OffsetRange, SourcePosition
from brew.orders import DISCOUNTS, profile
from brew.range_transaction import Rows, Targets, transact_range
from brew.record import Reject
from brew.settings import Limits, PipelineSettings, ProfilesSettings
from pipeline import profiles
from pipeline.enrichment import enricher
from pipeline.profiles import NOT_A_PROFILE, GlobalTable, Table, check_profile, lookup

ORDER = b'{"customer_id":"c-1","x":1}'


def table_of(*records: tuple[int, int, str, bytes | None]) -> Table:
    table = Table()
    for partition, offset, customer, value in records:
        table.take("profiles", partition, offset, customer.encode(), value)
    return table


def enriched(table: Table, order: bytes = ORDER, key: bytes | None = b"gold-1") -> tuple[dict[str, Any], bytes | None]:
    """The order, enriched, and its header's value."""
    resolve, evidence = lookup(table)
    out = enricher(Limits(), resolve)(key, order)
    assert not isinstance(out, Reject)
    name, value = evidence()
    assert name == "profile.offset"
    return json.loads(out), value


def test_the_tier_is_the_profiles_and_the_header_says_which() -> None:
    """The record's key, which says gold, has no say."""
    order, header = enriched(table_of((3, 17, "c-1", profile("c-1", "bronze"))))
    assert order == {"customer_id": "c-1", "x": 1, "loyalty_tier": "bronze", "loyalty_discount": DISCOUNTS["bronze"]}
    assert header == b"3/17"


def test_a_check_makes_dead_letters_of_what_the_table_takes_for_no_profile() -> None:
    """Good profiles and tombstones are dropped."""
    rows: list[tuple[bytes, bytes | None]] = [
        (b"c-1", profile("c-1", "gold")),
        (b"c-1", b"{"),
        (b"c-2", b'{"tier":"diamond"}'),
        (b"c-3", profile("c-4", "gold")),
        (b"", profile("", "gold")),
        (b"\xff", profile("c-1", "gold")),
        (b"c-1", None),
    ]
    table = Table()
    for offset, (key, value) in enumerate(rows):
        table.take("profiles", 0, offset, key, value)
    checked = testing.transform(check_profile, [testing.record(value, key=key) for key, value in rows])
    assert (len(checked.rejected), len(checked.dropped), checked.outputs) == (table.malformed, 2, [])
    assert {one.reason for one in checked.rejected} == {NOT_A_PROFILE}
    for one, complaint in zip(checked.rejected, table.complaints, strict=True):
        assert one.message in complaint


def test_an_update_replaces_and_a_tombstone_removes() -> None:
    """A customer without a profile is standard, and the header says how far was read."""
    table = table_of((0, 1, "c-1", profile("c-1", "gold")), (0, 5, "c-1", profile("c-1", "silver")))
    assert tier_and_place(table) == ("silver", b"0/5")
    table.take("profiles", 0, 6, b"c-1", None)
    table.read_to({1: 40, 0: 7})
    order, header = enriched(table)
    assert (order["loyalty_tier"], order["loyalty_discount"], header) == ("standard", 0.0, b"none 7,40")


@pytest.mark.parametrize("customer", [b"815", b"8.5", b"true", b'["c-1"]', b'{"c":1}', b"12345678901234567890123"])
def test_a_customer_id_that_is_no_text_has_no_profile(customer: bytes) -> None:
    order, header = enriched(table_of((0, 1, "815", profile("815", "gold"))), b'{"customer_id":' + customer + b"}")
    assert order["loyalty_tier"] == "standard"
    assert header.startswith(b"none")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a JSON list"),
        (b'{"customer_id":"c-1"}', "tier is 'None'"),
        (b'{"tier":"diamond"}', "tier is 'diamond', known are gold, silver, bronze, standard"),
        (b'{"tier":["gold"]}', "tier is"),
        (b'{"customer_id":"c-2","tier":"gold"}', "the value's customer_id another one"),
    ],
)
def test_what_is_no_profile_is_named_and_counted_and_its_customer_has_none(value: bytes, says: str) -> None:
    """The one before does not come back: whoever loads after compaction could not know it."""
    table = table_of((0, 1, "c-1", profile("c-1", "gold")), (0, 2, "c-1", value))
    assert table.malformed == 1
    assert table.complaints[0].startswith("profiles[0] offset 2: ")
    assert says in table.complaints[0]
    assert enriched(table)[0]["loyalty_tier"] == "standard"


def test_a_key_that_is_no_text_removes_nobody_and_of_a_thousand_malformed_profiles_five_are_named() -> None:
    table = table_of((0, 1, "c-1", profile("c-1", "gold")))
    table.take("profiles", 0, 2, b"\xff\xfe", profile("c-1", "silver"))
    table.take("profiles", 0, 3, None, profile("c-1", "silver"))
    assert (table.malformed, len(table.complaints), len(table.entries)) == (2, 2, 1)
    table = table_of(*((0, offset, f"c-{offset}", b"?") for offset in range(1000)))
    assert (table.malformed, len(table.complaints)) == (1000, 5)


KINDS = st.sampled_from([*DISCOUNTS, None, "malformed"])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), KINDS), max_size=40), st.randoms())
def test_the_table_is_the_last_record_of_each_customer(written: list[tuple[int, int, str | None]], rng: Any) -> None:
    """A customer's records lie in one partition, in order; partitions arrive in any order."""
    logs: dict[int, list[tuple[int, int, str, bytes | None]]] = {0: [], 1: [], 2: []}
    expected: dict[str, tuple[str, bytes]] = {}
    for partition, number, kind in written:
        customer = f"c-{partition}-{number}"
        offset = len(logs[partition])
        value = None if kind is None else b"{}" if kind == "malformed" else profile(customer, kind)
        logs[partition].append((partition, offset, customer, value))
        expected.pop(customer, None)
        if kind in DISCOUNTS:
            expected[customer] = str(kind), b"%d/%d" % (partition, offset)
    table = Table()
    left = {p: iter(log) for p, log in logs.items()}
    while left:
        partition_read = rng.choice(sorted(left))
        record = next(left[partition_read], None)
        if record is None:
            del left[partition_read]
        else:
            table.take("profiles", *record[:2], record[2].encode(), record[3])
    resolve, evidence = lookup(table)
    for partition in range(3):
        for number in range(5):
            customer = f"c-{partition}-{number}"
            tier = resolve(None, {"customer_id": customer})
            known = expected.get(customer)
            assert tier == (known[0] if known else "standard")
            assert evidence()[1] == (known[1] if known else b"none ")
    assert table.malformed == sum(kind == "malformed" for *_, kind in written)


def test_the_header_stands_between_the_inputs_own_and_the_source() -> None:
    """A rejected record, which no profile touched, has none."""
    table = table_of((0, 1, "c-1", profile("c-1", "gold")))
    resolve, evidence = lookup(table)
    broker, offered = Broker(), OffsetRange("in", 2, 0, 3)
    rows = Rows([0, 1], [b"k", b"k"], [ORDER, b"?"], [[("trace", b"1")], None], [7, 7])
    targets = Targets("out", "dead", 2, 2, "", 10_000)
    kafka = FakeTransaction(broker)
    enrich = enricher(Limits(), resolve)
    transact_range([rows], offered, targets, enrich, kafka, Deadline(5), first_time=True, evidence=evidence)
    good, bad = broker.visible()
    assert good.headers == [("trace", b"1"), ("profile.offset", b"0/1"), *SourcePosition("in", 2, 0).headers()]
    assert "profile.offset" not in dict(bad.headers)


class Source:
    """A topic of one partition in memory; ``slow`` never gets to its end."""

    def __init__(self, log: list[tuple[bytes, bytes | None]], *, slow: bool = False) -> None:
        self.topic, self.log, self.slow = "profiles", log, slow
        self.positions = {0: 0}
        self.polls, self.closed = 0, False
        self.stale = self.cut_off = self.failing = False
        self.reading = threading.Event()

    def is_stale(self, _deadline: Deadline) -> bool:
        return self.stale

    def ends(self, _deadline: Deadline) -> dict[int, int]:
        self.polls += 1
        if self.cut_off:
            raise DeadlineExceeded("end of profiles: still failing")
        if self.failing:
            raise Retriable("read of profiles: KAFKA_STORAGE_ERROR")
        return {0: len(self.log)}

    def read(self, until: Mapping[int, int], deadline: Deadline, stop: threading.Event) -> Iterator[list[Any]]:
        self.reading.set()
        while self.slow:
            if stop.wait(0.01):
                raise DeadlineExceeded("left because the run stops")
            deadline.check("read")
        while self.positions[0] < until[0]:
            offset = self.positions[0]
            self.positions[0] = offset + 1
            yield [log_record(offset, 0, *self.log[offset])]

    def replace_if_cut_off(self) -> None:
        self.cut_off = False

    def close(self) -> None:
        self.closed = True


def global_table(source: Source, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0) -> GlobalTable:
    monkeypatch.setattr(profiles, "FullTopicReader", lambda *_: source)
    return GlobalTable(Connection("b:1"), "g", ProfilesSettings(load_timeout_s=timeout_s))


def tier_and_place(table: Table) -> tuple[str, bytes | None]:
    """The tier of customer c-1, and the place of the profile that says so."""
    resolve, evidence = lookup(table)
    return resolve(None, {"customer_id": "c-1"}), evidence()[1]


def test_each_call_has_read_what_was_there_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [(b"c-1", profile("c-1", "gold"))]
    table = global_table(Source(log), monkeypatch)
    assert tier_and_place(table.ready(5)) == ("gold", b"0/0")
    log.append((b"c-1", profile("c-1", "silver")))
    assert tier_and_place(table.ready(5)) == ("silver", b"0/1")


def test_a_load_that_takes_too_long_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The deadline is the setting's, and the next attempt need not begin anew."""
    source = Source([(b"c-1", profile("c-1", "gold"))], slow=True)
    table = global_table(source, monkeypatch, 1.0)
    with pytest.raises(DeadlineExceeded, match="1 s"):
        table.ready(60)
    source.slow = False
    assert len(table.ready(60).entries) == 1
    assert not source.closed
    assert "1 customer of profiles held" in capsys.readouterr().err


def test_a_reader_that_lost_its_brokers_for_good_is_replaced_and_the_table_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All brokers were away for a moment: each later transaction of this process waited for an answer, and failed."""
    log = [(b"c-1", profile("c-1", "gold"))]
    source = Source(log)
    table = global_table(source, monkeypatch)
    table.ready(5)
    log.append((b"c-2", profile("c-2", "gold")))
    source.cut_off = True
    with pytest.raises(DeadlineExceeded):
        table.ready(0.01)
    assert sorted(table.ready(5).entries) == ["c-1", "c-2"]
    assert not source.closed


def test_a_failed_read_that_may_have_lost_profiles_is_repeated_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client returns records and an error together; the records were skipped, and their customers had old tiers."""
    source = Source([(b"c-1", profile("c-1", "gold"))])
    table = global_table(source, monkeypatch)
    source.positions, source.failing = {0: 1}, True
    with pytest.raises(Retriable):
        table.ready(5)
    assert source.closed
    source.positions, source.failing = {0: 0}, False
    assert list(table.ready(5).entries) == ["c-1"]


def test_a_thread_that_waited_meanwhile_does_not_take_what_a_failed_read_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waited, another thread read all, and a third one lost it: its orders were `standard`."""
    source = Source([(b"c-1", profile("c-1", "gold"))])
    table = global_table(source, monkeypatch)
    lock = table._lock

    def after_two_others(timeout: float) -> bool:
        table._lock = lock
        table.ready(5)
        source.failing = True
        with pytest.raises(Retriable):
            table.ready(5)
        source.positions, source.failing = {0: 0}, False
        return lock.acquire(timeout=timeout)

    table._lock = Mock(acquire=after_two_others)
    assert tier_and_place(table.ready(5)) == ("gold", b"0/0")


def test_a_replaced_reader_goes_on_at_its_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Mock] = []
    monkeypatch.setattr(topic_reader, "consumer", lambda *_, **__: clients.append(Mock()) or clients[-1])
    monkeypatch.setattr(topic_reader, "admin", lambda _: "an admin client")
    monkeypatch.setattr(topics, "describe_one", lambda *_: Topic("profiles", "id", 2, 1))
    monkeypatch.setattr(topic_reader, "log_offsets", lambda *_: {0: LogOffsets(3, 9, 9), 1: LogOffsets(0, 9, 9)})
    reader = topic_reader.FullTopicReader(Connection("b:1"), "profiles", "g", Deadline(5))
    reader.positions[1] = 7
    for cut_off, consumers in ((False, 1), (True, 2)):
        monkeypatch.setattr(topic_reader, "is_cut_off", lambda client, *_, lost=cut_off: lost and client is clients[0])
        reader.replace_if_cut_off()
        assert len(clients) == consumers
    clients[0].close.assert_called_once_with()
    [[assigned], _] = clients[1].assign.call_args
    assert {place.partition: place.offset for place in assigned} == {0: 3, 1: 7}
    # A topic of the same name with another id holds other records from the start.
    for described, stale in (("id", 2), False), (("another id", 2), True), (("id", 3), True):
        monkeypatch.setattr(topics, "describe_one", lambda *_, now=described: Topic("profiles", *now, 1))
        assert reader.is_stale(Deadline(5)) is stale
    stop = threading.Event()
    stop.set()
    with pytest.raises(DeadlineExceeded, match="interrupted because the run stops"):
        list(reader.read({0: 9}, Deadline(5), stop))
    # Markers at the end are no records: the report of an end is all that shows them.
    clients[1].poll = lambda _wait_s: log_record(9, error=KafkaError(KafkaError._PARTITION_EOF))
    clients[1].consume.return_value = []
    assert list(reader.read({0: 9}, Deadline(5), threading.Event())) == []


def test_a_load_is_given_up_when_the_run_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source([], slow=True)
    table = global_table(source, monkeypatch, 60)
    monkeypatch.setattr(source, "replace_if_cut_off", replaced := Mock())
    with ThreadPoolExecutor() as threads:
        load = threads.submit(table.ready, 60)
        assert source.reading.wait(5)
        began = time.monotonic()
        table.close()
        with pytest.raises(DeadlineExceeded, match=r"^left because the run stops$"):
            load.result(5)
    assert time.monotonic() - began < 2
    assert (source.closed, replaced.called) == (True, False), "which would look for brokers first"


def test_a_topic_that_ends_before_what_was_read_is_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made again, and what is held may be of the old one."""
    log = [(b"c-1", profile("c-1", "gold")), (b"c-2", profile("c-2", "gold"))]
    source = Source(log)
    table = global_table(source, monkeypatch)
    table.ready(5)
    log[:] = [(b"c-3", profile("c-3", "gold"))]
    with pytest.raises(Fatal, match="made again"):
        table.ready(5)
    assert source.closed
    source.positions = {0: 0}
    assert list(table.ready(5).entries) == ["c-3"]


def test_a_topic_that_was_recreated_or_got_partitions_is_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders would be enriched with tiers of the old topic, or without those of its new partition, until a restart."""
    old = Source([(b"c-1", profile("c-1", "gold"))])
    new = Source([(b"c-2", profile("c-2", "silver")), (b"c-1", profile("c-1", "bronze"))])
    table = global_table(old, monkeypatch)
    assert tier_and_place(table.ready(5)) == ("gold", b"0/0")
    old.stale = True
    monkeypatch.setattr(profiles, "FullTopicReader", lambda *_: new)
    assert tier_and_place(table.ready(5)) == ("bronze", b"0/1")
    assert (old.closed, new.closed) == (True, False)


@pytest.mark.parametrize(("policy", "refused"), [("compact", False), ("compact,delete", True), ("delete", True)])
def test_a_topic_that_forgets_profiles_with_time_is_refused(
    policy: str, *, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "admin", lambda _: None)
    monkeypatch.setattr(profiles.topics, "describe", lambda _client, names, _deadline: dict.fromkeys(names))
    monkeypatch.setattr(profiles.topics, "cleanup_policy", lambda *_: policy)
    with pytest.raises(Refused, match=f"={policy}, which removes") if refused else nullcontext():
        profiles.check(ProfilesSettings(), Connection("b:1"), Deadline(5))
    monkeypatch.setattr(profiles.topics, "describe", lambda *_: {})
    with pytest.raises(Refused, match="is not on b:1; make it"):
        profiles.check(ProfilesSettings(), Connection("b:1"), Deadline(5))


def test_a_stop_cancels_the_tables_that_are_still_loading_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    loading, loaded = Mock(loaded=False), Mock(loaded=True)
    monkeypatch.setattr(profiles, "_tables", {1: loading, 2: loaded})
    profiles.close_tables(loading_only=True)
    assert (loading.close.called, loaded.close.called, profiles._tables) == (True, False, {2: loaded})
    profiles.close_tables()
    assert (loaded.close.called, profiles._tables) == (True, {})


def test_threads_that_wait_together_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source([(b"c-1", profile("c-1", "gold"))])
    table = global_table(source, monkeypatch)
    with ThreadPoolExecutor(8) as threads:
        with table._lock:
            loads = [threads.submit(table.ready, 5) for _ in range(8)]
        assert len({id(load.result(5)) for load in loads}) == 1
    assert source.polls < 8


def test_a_call_that_comes_after_another_ones_answer_about_the_end_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that was written after its customer's profile would have been enriched without it."""
    log, clock, arrived = [(b"c-1", profile("c-1", "gold"))], [1.0], threading.Event()
    source = Source(log)
    table = global_table(source, monkeypatch)
    late = ThreadPoolExecutor(1)
    later = list[Any]()
    original = source.ends

    def monotonic() -> float:
        now = clock[0]
        if threading.current_thread() is not threading.main_thread():
            arrived.set()
        return now

    def ends(deadline: Deadline) -> dict[int, int]:
        found = original(deadline)
        if not later:
            log.append((b"c-2", profile("c-2", "gold")))
            clock[0] = 2.0
            later.append(late.submit(lambda: sorted(table.ready(5).entries)))
            assert arrived.wait(5)
            clock[0] = 3.0
        return found

    monkeypatch.setattr(profiles, "time", Mock(monotonic=monotonic))
    monkeypatch.setattr(source, "ends", ends)
    table.ready(5)
    assert later[0].result(5) == ["c-1", "c-2"]
    late.shutdown()


def test_a_forked_process_has_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of a client do not live in a fork: its first transaction would have waited for them."""
    monkeypatch.setattr(profiles, "_tables", {})
    monkeypatch.setattr(profiles, "GlobalTable", made := Mock())
    for process, tables in ((7, 1), (7, 1), (8, 2)):
        monkeypatch.setattr(profiles.os, "getpid", lambda pid=process: pid)
        profiles.ready(ProfilesSettings(), Connection("b:1"), "g", 5)
        assert made.call_count == tables


def settings(**more: Any) -> PipelineSettings:
    return PipelineSettings(Connection("b:1"), "in", "out", "dead", "g", **more)


@pytest.mark.parametrize(
    ("topic", "timeout_s", "says"),
    [("no topic", 9, "PROFILES_TOPIC"), ("out", 9, "a topic of their own"), ("profiles", 0, "--profiles-timeout is 0")],
)
def test_settings_of_profiles_that_can_not_be_are_refused(topic: str, timeout_s: float, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        settings(profiles=ProfilesSettings(topic, timeout_s))
