"""The second opinion about enrichment, and about tiers that come from the log of profiles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.errors import UsageError
from brew.offsets import LogOffsets, SourcePosition
from brew.orders import DISCOUNTS, ORDER_FIELDS, PROFILE_OFFSET, Reason, profile, tier_of_key
from brew.record import Reject
from brew.settings import Limits
from pipeline.enrichment import enricher
from pipeline.profiles import Table, lookup
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts, Record
from proof.commands.seed import Customers, chunks
from proof.findings import Name, Verdict
from proof.oracle import Profiles, unjustified, wrong_enrichment
from proof.seed import Seeding, orders, spoiled
from proof.seed import chunks as order_chunks

ORDER = b'{"order_id":"gold-1","customer_id":"c","total_cents":5}'
GOLD = b',"loyalty_tier":"gold","loyalty_discount":0.15}'

SPACED = b'{ "loyalty_discount": 1.5e-1, "total_cents": 5.0, "customer_id": "\\u0063", "order_id": "gold-1"'
SPACED += b', "loyalty_tier": "gold"}'
ESCAPED = b'{"customer_id":"\\u0063","n":%b' % (b"7" * 5000)
OVERWRITTEN = b'{"customer_id":"c","loyalty_discount":0.99,"loyalty_tier":"gold"}'


@pytest.mark.parametrize(
    ("key", "value", "out"),
    [
        (b"gold-1", ORDER, ORDER[:-1] + GOLD),
        (b"gold-1", ORDER, SPACED),
        (b"gold-1", ESCAPED + b"} ", ESCAPED + GOLD),
        (b"x", OVERWRITTEN, b'{"customer_id":"c","loyalty_tier":"standard","loyalty_discount":0.0}'),
    ],
    ids=["appended", "in another order and spacing", "escapes, and many digits", "overwritten"],
)
def test_equal_objects_are_equal_however_they_are_written(key: bytes, value: bytes, out: bytes) -> None:
    assert wrong_enrichment(key, value, out) is None


@pytest.mark.parametrize(
    ("key", "value", "out", "text"),
    [
        (b"gold-1", ORDER + b" ", ORDER + GOLD, "can't be parsed as JSON"),
        (b"x", OVERWRITTEN, OVERWRITTEN, "0.99"),
        (b"gold-1", ORDER, b"[]", "the output is not a JSON object"),
        *(
            (b"gold-1", ORDER, ORDER[:-1].replace(b'"total_cents":5', change) + GOLD, "field")
            for change in (b'"total_cents":6', b'"total_cents":5,"extra":1', b'"x":5')
        ),
    ],
    ids=["only looks appended", "sent along and kept", "no object", "changed", "added", "missing"],
)
def test_what_differs_is_named(key: bytes, value: bytes, out: bytes, text: str) -> None:
    assert text in (wrong_enrichment(key, value, out) or "")


@pytest.mark.parametrize(
    ("key", "tier", "discount"),
    [
        *((b"silver-1", "silver", "0.10"), (b"bronze-1", "bronze", "0.05")),
        *((None, "standard", "0"), (b"golden-1", "standard", "0.0")),
    ],
)
def test_the_tier_comes_from_the_whole_prefix(key: bytes | None, tier: str, discount: str) -> None:
    out = ORDER[:-1] + f',"loyalty_tier":"{tier}","loyalty_discount":{discount}}}'.encode()
    assert wrong_enrichment(key, ORDER, out) is None
    assert wrong_enrichment(b"gold-1", ORDER, out) is not None


@pytest.mark.parametrize(
    ("number", "lossy"),
    [
        ("12345678901234567890123", "12345678901234567000000"),
        ("1e999999999999999999999", "1e99999999999999999999"),
        *(("0.1000000000000000055", "0.1"), ("1e400", "1e401"), ("1", "true"), ("1", '"1"'), ("0", "null")),
    ],
)
def test_numbers_keep_their_exact_value(number: str, lossy: str) -> None:
    value = f'{{"customer_id":"c","n":{number}}}'.encode()
    kept = f'{{"n":{number},"customer_id":"c"'.encode() + GOLD
    lost = f'{{"customer_id":"c","n":{lossy}'.encode() + GOLD
    assert wrong_enrichment(b"gold-1", value, kept) is None
    assert "'n'" in (wrong_enrichment(b"gold-1", value, lost) or "")


@pytest.mark.parametrize(
    "value",
    [
        *(b"nonsense", b"[1]", b'{"a":1}', b'{"customer_id":null}', b'{"customer_id":""}', b'{ "customer_id":""}'),
        *(b'{"customer_id":"c"', b'{"customer_id":NaN}', b'{"customer_id":"\\ud800"}', None),
    ],
)
def test_a_bad_record_must_not_come_out_enriched(value: bytes | None) -> None:
    out = (value or b"{}")[:-1] + GOLD
    assert wrong_enrichment(b"gold-1", value, out) is not None


@pytest.mark.parametrize(("length", "shown"), [(58, repr("x" * 58)), (59, repr("x" * 56)[:-1] + "...")])
def test_a_value_that_differs_is_shown_up_to_a_line(length: int, shown: str) -> None:
    """60 characters; and a word that JSON does not have is told as it stands there."""
    value = b'{"customer_id":"c","n":"%b"}' % (b"x" * length)
    out = b'{"customer_id":"c","n":1' + GOLD
    assert wrong_enrichment(b"gold-1", value, out) == f"field 'n' is 1, should be {shown}"
    complaint = wrong_enrichment(b"gold-1", b'{"customer_id":NaN}', out)
    assert complaint == "the input can't be parsed (NaN is not JSON) and belongs on the dead-letter topic"


NO_CUSTOMER = (b"", b'"n":1E+400', b'"customer_id":null', b'"customer_id":""')


@pytest.mark.parametrize(
    ("reason", "value"),
    [
        *((Reason.NOT_JSON, value) for value in (b"{", b"\xff", b'{"customer_id":"c","half":"\\ud800"}')),
        (Reason.NOT_JSON, b'{"half":"\\udc00","customer_id":"c","half":"whole"}'),
        *((Reason.NO_CUSTOMER_ID, b"{%b}" % fields) for fields in NO_CUSTOMER),
        *((Reason.NOT_AN_OBJECT, b"[]"), (Reason.NO_VALUE, None), (Reason.TOO_LARGE, ORDER)),
    ],
)
def test_a_justified_rejection_passes(reason: Reason, value: bytes | None) -> None:
    assert unjustified(reason, value) is None


@pytest.mark.parametrize(
    ("reason", "value", "has"),
    [
        (Reason.NO_CUSTOMER_ID, b'{"customer_id":7}', "has one"),
        (Reason.NO_CUSTOMER_ID, b"[]", "is not an object"),
        (Reason.NO_CUSTOMER_ID, b'{"customer_id":""', "is not JSON"),
        (Reason.NO_VALUE, b"{}", "has a value"),
        (Reason.NOT_JSON, b"{}", "is JSON"),
    ],
)
def test_a_customer_that_is_there_and_no_order_at_all_are_other_reasons(reason: Reason, value: bytes, has: str) -> None:
    assert unjustified(reason, value) == f"rejected as {reason}, but the input {has}"


@pytest.mark.parametrize("reason", list(Reason))
def test_rejecting_a_good_order_is_found(reason: Reason) -> None:
    """Throwing an order away is no way out; only the run knew its limits, but no tombstone is over one."""
    judged = reason not in {Reason.TOO_LARGE, Reason.TOO_DEEP}
    assert (unjustified(reason, ORDER) is not None) is judged
    assert (unjustified(reason, b'{"customer_id":"c","n":1E+400,"pair":"\\ud83e\\udda7"}') is not None) is judged
    assert (unjustified(reason, None) is None) is (reason is Reason.NO_VALUE)


CUSTOMER_1 = b'{"customer_id":"c-1"}'
Log = Sequence[tuple[int, int, bytes | None, bytes | None]]
GOLD_PROFILE = (0, 4, b"c-1", profile("c-1", "gold"))


def read(log: Log, ends: dict[int, int] | None = None) -> Profiles:
    ends = ends or {0: 10}
    profiles = Profiles("profiles", {p: LogOffsets(0, end, end) for p, end in ends.items()})
    profiles.take((*one, [], 0) for one in log)
    return profiles


def out(tier: str) -> bytes:
    return f'{{"customer_id":"c-1","loyalty_tier":"{tier}","loyalty_discount":{DISCOUNTS[tier]}}}'.encode()


def wrong(profiles: Profiles, tier: str, header: bytes | None) -> str | None:
    return profiles.wrong(CUSTOMER_1, out(tier), None if header is None else (PROFILE_OFFSET, header))


def test_the_profile_that_the_header_names_gives_the_tier() -> None:
    """A profile need not repeat the customer that its key names."""
    profiles = read([(0, 4, b"c-1", b'{"tier":"gold"}'), (0, 7, b"c-1", profile("c-1", "silver"))])
    assert wrong(profiles, "gold", b"0/4") is None
    assert wrong(profiles, "silver", b"0/7") is None
    assert "loyalty_discount' is 0.15, should be 0.1" in (wrong(profiles, "gold", b"0/7") or "")
    assert profiles.doubts == []
    assert (profiles.counts, profiles.notes) == ({"profiled": 3, "unprofiled": 0}, [])


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "no profile.offset header"),
        (b"0/5", "its profile profiles[0] offset 5 is a tombstone or malformed"),
        (b"0/6", "its profile profiles[0] offset 6 is another customer's, not 'c-1''s"),
        (b"0/10", "its profile profiles[0] offset 10 is not visible (LSO 10)"),
        (b"0/" + b"9" * 19, f"its profile profiles[0] offset {'9' * 19} is not visible (LSO 10)"),
        (b"0/" + b"9" * 20, "not a position in profiles"),
        (b"1/4", "not a position in profiles"),
        (b"0", "not a position in profiles"),
        (b"x/y", "not a position in profiles"),
        (b"none 9", "but customer 'c-1' had one at 0/8"),
        (b"none", "needs 1 offset, one per partition"),
        (b"none 1,2", "needs 1 offset, one per partition"),
        (b"none -1", "needs 1 offset, one per partition"),
    ],
)
def test_a_header_that_can_not_be_is_wrong(header: bytes | None, says: str) -> None:
    other = (0, 6, b"c-2", profile("c-2", "gold"))
    log = [GOLD_PROFILE, (0, 5, b"c-1", None), other, (0, 8, b"c-1", profile("c-1", "gold"))]
    assert says in (wrong(read(log), "gold" if header != b"none 9" else "standard", header) or "")


def test_without_a_profile_only_standard_is_right() -> None:
    profiles = read([GOLD_PROFILE, (0, 5, b"c-1", None)])
    assert wrong(profiles, "standard", b"none 6") is None
    assert "should be 0.0" in (wrong(profiles, "gold", b"none 6") or "")
    assert "had one at 0/4" in (wrong(profiles, "standard", b"none 5") or "")
    assert profiles.doubts == []
    assert profiles.counts == {"profiled": 0, "unprofiled": 3}


def test_an_output_made_before_the_topic_got_partitions_is_right() -> None:
    """A run reads new partitions after its next start, and it may have ended before they were there."""
    logs = {partition: LogOffsets(0, 10, 10) for partition in range(3)}
    profiles = Profiles("profiles", logs)
    profiles.take([(0, 4, b"c-1", profile("c-1", "gold"), [], 0), (2, 0, b"c-1", profile("c-1", "gold"), [], 0)])
    assert wrong(profiles, "standard", b"none 4,7") is None
    assert "had one at 0/4" in (wrong(profiles, "standard", b"none 5") or "")
    assert "needs 3 offsets" in (wrong(profiles, "standard", b"none 1,1,1,1") or "")
    assert profiles.notes == ["2 outputs without a profile: made with fewer partitions than profiles has now"]


def test_a_customer_removed_in_one_of_its_partitions_may_have_had_no_profile() -> None:
    """Nobody can tell in which order a run read the two; with a profile last in both, it had one."""
    profiles = Profiles("profiles", {partition: LogOffsets(0, 10, 10) for partition in range(2)})
    gold = profile("c-1", "gold")
    profiles.take([(0, 0, b"c-1", gold, [], 0), (0, 1, b"c-1", None, [], 0), (1, 0, b"c-1", gold, [], 0)])
    assert wrong(profiles, "standard", b"none 2,1") is None
    assert "had one at 0/0, 1/0" in (wrong(profiles, "standard", b"none 1,1") or "")


def test_an_output_that_names_no_profile_or_has_no_value_is_wrong() -> None:
    profiles = read([GOLD_PROFILE])
    for header in (("profile", b"0/4"), (PROFILE_OFFSET, None)):
        assert (profiles.wrong(CUSTOMER_1, out("gold"), header) or "").startswith("not enriched with a profile")
    for value, output, text in ((None, out("gold"), "the input has no value"), (CUSTOMER_1, None, "the output has no")):
        assert (profiles.wrong(value, output, (PROFILE_OFFSET, b"0/4")) or "").startswith(text)


def test_an_order_that_names_no_customer_by_text_has_no_profile() -> None:
    """A number as customer is enriched, and one that is no order at all is none of the profiles' business."""
    profiles = read([GOLD_PROFILE])
    output = out("standard").replace(b'"c-1"', b"7")
    assert profiles.wrong(b'{"customer_id":7}', output, (PROFILE_OFFSET, b"none 9")) is None
    complaint = profiles.wrong(b'{"customer_id":7}', output, (PROFILE_OFFSET, b"0/4"))
    assert complaint == "its profile profiles[0] offset 4 is another customer's, not 7's"
    complaint = profiles.wrong(b"[1]", out("standard"), (PROFILE_OFFSET, b"none 9"))
    assert complaint == "the input is not an order with a customer_id and belongs on the dead-letter topic"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"c-1", b"no json"),
        (b"c-1", b"[]"),
        (b"c-1", b'{"customer_id":"c-1"}'),
        (b"c-1", b'{"customer_id":"c-1","tier":"diamond"}'),
        (b"c-1", b'{"customer_id":"c-1","tier":[]}'),
        (b"c-1", profile("c-2", "gold")),
        (b"", profile("", "gold")),
        (None, profile("c-1", "gold")),
        (b"\xff", profile("c-1", "gold")),
    ],
)
def test_a_record_that_is_no_profile_is_noted_and_ends_the_one_before(key: bytes | None, value: bytes) -> None:
    assert read([(0, 4, b"c-1", b'{"tier":"gold"}'), (0, 5, b"c-1", None)]).notes == []
    profiles = read([GOLD_PROFILE, (0, 5, key, value), (0, 6, key, value)])
    assert profiles.notes == ["2 records of profiles can't be parsed as a profile; their customers have none"]
    assert (wrong(profiles, "standard", b"none 6") is None) is (key == b"c-1")


def test_a_profile_that_compaction_took_leaves_a_doubt_and_no_finding() -> None:
    profiles = read([(0, 7, b"c-1", profile("c-1", "silver"))], {0: 10, 1: 10})
    assert wrong(profiles, "gold", b"0/4") is None
    assert wrong(profiles, "gold", b"0/9") is None
    assert wrong(profiles, "gold", b"1/0") is None
    assert wrong(profiles, "standard", b"none 5,0") is None
    (doubt,) = profiles.doubts
    assert doubt.startswith("compaction removed the profiles of 4 outputs from profiles, the first of customer 'c-1', ")
    assert doubt.endswith(", profile.offset 0/4; verify earlier, or raise min.compaction.lag.ms")
    mixed = b'{"customer_id":"c-1","loyalty_tier":"gold","loyalty_discount":0.1}'
    assert "loyalty_discount" in (profiles.wrong(CUSTOMER_1, mixed, (PROFILE_OFFSET, b"0/4")) or "")
    bad = b'{"customer_id":"c-1","loyalty_tier":"diamond","loyalty_discount":0.1}'
    assert "diamond" in (profiles.wrong(CUSTOMER_1, bad, (PROFILE_OFFSET, b"0/4")) or "")


KINDS = st.sampled_from([*DISCOUNTS, None, "malformed"])
WRITTEN = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), KINDS), max_size=25)


def compact(log: Log, until: int) -> Log:
    """As Kafka does it: of all below a place in the log only the last of each key, and no tombstone for ever."""
    newest = {key: n for n, (_, _, key, _) in enumerate(log[:until])}
    kept = [one for n, one in enumerate(log[:until]) if newest[one[2]] == n and (one[3] is not None or n % 2)]
    return [*kept, *log[until:]]


@given(WRITTEN, st.integers(0, 25), st.integers(0, 25))
def test_what_the_pipeline_makes_of_any_log_is_right_and_no_other_tier_is(
    written: list[tuple[int, int, str | None]], count: int, compacted: int
) -> None:
    """The pipeline has read a part of the log; the checker sees all of it, or what compaction left."""
    log, ends = [], {0: 0, 1: 0}
    for partition, number, kind in written:
        customer = f"c-{partition}-{number}"
        value = None if kind is None else b"{}" if kind == "malformed" else profile(customer, kind)
        log.append((partition, ends[partition], customer.encode(), value))
        ends[partition] += 1
    table, positions = Table(), {0: 0, 1: 0}
    for partition, offset, key, value in log[:count]:
        table.take("profiles", partition, offset, key, value)
        positions[partition] = offset + 1
    table.read_to(positions)
    profiles = read(compact(log, compacted), ends)
    resolve, evidence = lookup(table)
    enrich = enricher(Limits(), resolve)
    for customer in sorted({*(key for _, _, key, _ in log), b"nobody"}):
        order = b'{"customer_id":"%b"}' % customer
        enriched = enrich(None, order)
        assert not isinstance(enriched, Reject)
        assert profiles.wrong(order, enriched, evidence()) is None
        if not compacted:
            assert profiles.untold == 0
            for tier in DISCOUNTS:
                other = enricher(Limits(), lambda _k, _o, tier=tier: tier)(None, order)
                assert not isinstance(other, Reject)
                assert (profiles.wrong(order, other, evidence()) is None) == (other == enriched)


def verdict(tier: str, header: bytes | None, log: Log = (GOLD_PROFILE,)) -> Any:
    profiles = read(log)
    checker = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 1, 1)}, {0: 1}, 1, profiles=profiles))
    source = SourcePosition("in", 0, 0).headers()
    added = [] if header is None else [(PROFILE_OFFSET, header)]
    checker.input([Record(0, 0, b"gold-1", CUSTOMER_1, [("trace", b"1")], 5)])
    checker.output([Record(0, 0, b"gold-1", out(tier), [("trace", b"1"), *added, *source], 5)])
    checker.input_ended()
    checker.downstream_ended()
    return checker.report(unseen=profiles.doubts)


def test_the_checker_sees_a_wrong_tier() -> None:
    """And what the record's key says is no excuse."""
    assert verdict("gold", b"0/4").verdict is Verdict.PROVEN
    for report in (verdict("silver", b"0/4"), verdict("gold", None), verdict("gold", b"none 3")):
        assert (report.verdict, report.totals) == (Verdict.VIOLATED, {Name.CORRUPT: 1})
    gone = verdict("gold", b"0/3", [(0, 5, b"c-1", None)])
    counted = {name: count for name, count in gone.counts.items() if count}
    assert (gone.verdict, counted) == (Verdict.INCONCLUSIVE, {"inputs": 1, "outputs": 1, "profiled": 1})


# The seeder's plan.


def test_equal_seeds_give_equal_profiles_updates_and_tombstones_among_them() -> None:
    plan = Customers("t", 50, seed=7, updates=20, tombstones=5)
    records = [one for some in chunks(plan) for one in some]
    assert records == [one for some in chunks(plan) for one in some]
    assert len(records) == plan.records == 75
    assert [key for key, _ in records[:2]] == [b"c-00001", b"c-00002"]
    assert sum(value is None for _, value in records) == 5
    profiles = read([(0, offset, key, value) for offset, (key, value) in enumerate(records)], {0: 75})
    assert profiles.malformed == 0
    assert records != [one for some in chunks(Customers("t", 50, seed=8, updates=20, tombstones=5)) for one in some]


@pytest.mark.parametrize(("fields", "says"), [((5, 0, 0, 6), "--tombstones is 6"), ((0, 0, 1, 0), "--updates is 1")])
def test_a_plan_that_can_not_be_is_refused(fields: tuple[int, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Customers("t", *fields)


def plan(count: int, **more: object) -> Seeding:
    return Seeding("t", count, **{"start": 0, **more})


def visible(seeding: Seeding, partitions: int) -> list[tuple[int, bytes, bytes | None]]:
    shown = [chunk for chunk in order_chunks(seeding, partitions) if not chunk.aborted]
    return [(p, key, value) for chunk in shown for p, (key, value) in chunk.records]


def test_an_order_has_the_fields_of_the_design_and_its_seed_alone_decides_it() -> None:
    key, value = orders(1)(17)
    fields = json.loads(value or b"")
    assert tuple(fields) == ORDER_FIELDS
    assert fields["order_id"] == key.decode()
    assert key.endswith(b"-000017")
    first, again, other = ([make(n) for n in range(50)] for make in (orders(5), orders(5), orders(6)))
    assert first == again
    assert first != other


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.integers(1, 9), st.booleans(), st.integers(0, 10**8))
def test_the_visible_orders_are_as_many_as_asked_for_with_unique_keys(
    count: int, partitions: int, transactional: bool, start: int
) -> None:
    """Aborted transactions come on top of the count, and never share a key with a visible order."""
    seeding = plan(count, start=start, transactional=transactional)
    written = list(order_chunks(seeding, partitions))
    keys = [key for chunk in written for _, (key, _) in chunk.records]
    assert len(visible(seeding, partitions)) == count
    assert len(keys) == len(set(keys))
    assert any(chunk.aborted for chunk in written) == transactional


def test_orders_reach_all_partitions_and_tiers_evenly_and_every_nth_is_bad_in_one_of_four_ways() -> None:
    records = visible(plan(30), 4)
    assert sorted(Counter(p for p, _, _ in records).values()) == [7, 7, 8, 8]
    assert {(p, tier_of_key(key)) for p, key, _ in records} == {(p, tier) for p in range(4) for tier in DISCOUNTS}
    good, mixed = visible(plan(40), 4), visible(plan(40, bad_every=5), 4)
    different = [n for n in range(40) if good[n] != mixed[n]]
    assert different == list(range(4, 40, 5))
    assert len({spoiled(orders(0)(1), kind)[1] for kind in range(4)}) == 4


def test_every_third_transaction_is_aborted_and_a_markers_only_partition_has_only_those() -> None:
    ends = [chunk.aborted for chunk in order_chunks(plan(600, transactional=True, transaction_size=100), 4)]
    assert ends == [False, False, True] * 3
    seeding = plan(50, transactional=True, markers_only_partition=2)
    written = list(order_chunks(seeding, 4))
    assert {p for p, _, _ in visible(seeding, 4)} == {0, 1, 3}
    assert 2 in {p for chunk in written if chunk.aborted for p, _ in chunk.records}


@pytest.mark.parametrize("wrong", [{"abort_every": 1}, {"markers_only_partition": 1}, {"count": -1}], ids=str)
def test_settings_that_do_not_fit_together_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="--"):
        plan(**{"count": 5, **wrong})
    with pytest.raises(UsageError, match="has 4 partition"):
        list(order_chunks(plan(5, transactional=True, markers_only_partition=4), 4))
