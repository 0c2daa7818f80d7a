"""When a run stops by itself: the circuit breaker, and how soon it gives up on brokers that refuse."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from brew.connection import Connection
from brew.driver.limits import FIRST, MIN_AT_END, WINDOW, CircuitBreaker, FirstRecordsCheck, GiveUpPolicy
from brew.driver.run_context import MAX_REASONS, RunProgress
from brew.errors import Refused
from brew.offsets import Committed, LogOffsets
from brew.orders import Reason
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, plan_ranges
from brew.settings import Limits, PipelineSettings
from pipeline.enrichment import enricher
from pipeline.transformation import EXAMPLE, OrderEnrichment


def outcome(enriched: int, rejected: int, partition: int = 0, status: Status = Status.COMMITTED) -> Outcome:
    return Outcome(partition, 0, 1, status, 0, enriched, rejected)


OTHERS = [outcome(0, WINDOW - 1, partition) for partition in range(10)]
UNCOMMITTED = [outcome(0, WINDOW, 0, status) for status in Status if status is not Status.COMMITTED]


@pytest.mark.parametrize(
    ("share", "before", "last", "refused"),
    [
        (0.5, [outcome(0, WINDOW - 1)], outcome(0, 1), "partition 0 rejected 1000 of its last 1000 records"),
        (0.5, [outcome(500, 500)], outcome(499, 501), r"a share of 0\.501, --max-rejected is 0\.5"),
        (0.5, [*[outcome(600, 0)] * 100, outcome(400, 200)], outcome(0, 600), "rejected 800 of its last 1200"),
        (0.1, [*OTHERS, *UNCOMMITTED], outcome(0, 1, 9), "partition 9 rejected 1000 of its last 1000"),
        (0.0, [], outcome(0, WINDOW), "rejected"),
        (0.999, [], outcome(0, 10 * WINDOW), "rejected"),
    ],
    ids=["a full window", "the share itself is allowed", "older than the window", "partitions apart", "none", "a bit"],
)
def test_more_rejected_than_allowed_end_the_run_once(share: float, before: list, last: Outcome, refused: str) -> None:
    """What still runs reports while the run ends; that must not break the ending."""
    breaker = CircuitBreaker(share)
    for one in before:
        breaker.apply_outcome(one)
    with pytest.raises(Refused, match=f"too-many-rejected: .*{refused}"):
        breaker.apply_outcome(last)
    breaker.apply_outcome(last)
    breaker.apply_outcome(outcome(0, WINDOW, 1))


def bad(count: int, partition: int = 0, reason: Reason = Reason.NO_CUSTOMER_ID, offset: int = 7) -> Outcome:
    reasons = {reason.value: count}
    return Outcome(partition, 0, 1, Status.COMMITTED, rejected=count, reasons=reasons, examples={reason.value: offset})


def test_a_run_whose_first_hundred_records_are_all_rejected_is_stopped_once() -> None:
    """Over all partitions; the sentence names the most frequent reason, an example, an order, and how to go on."""
    first = FirstRecordsCheck(None, OrderEnrichment(Limits()).advice, "clicks.dlq")
    first.apply_outcome(bad(9, 3, Reason.NOT_JSON))
    first.apply_outcome(bad(FIRST - 10))
    with pytest.raises(Refused) as refused:
        first.apply_outcome(bad(1, 1, offset=40))
    for words in (
        "all-rejected: the first 100 records were all rejected, 91 of them as no-customer-id",
        "the first one at partition 0, offset 7: they have no customer_id; an order looks like",
        EXAMPLE,
        "`brew dlq list --dead-letter clicks.dlq`",
        "--max-rejected 1",
    ):
        assert words in str(refused.value)
    assert isinstance(enricher(Limits())(b"gold-000017", EXAMPLE.encode()), bytes), "the order that it shows is one"
    first.apply_outcome(bad(FIRST))
    first.check_at_end()


def test_one_enriched_record_settles_it_for_the_run() -> None:
    with pytest.raises(Refused, match="all-rejected"):
        FirstRecordsCheck(None).apply_outcome(bad(10 * FIRST))
    first = FirstRecordsCheck(None)
    first.apply_outcome(bad(FIRST - 1))
    first.apply_outcome(outcome(1, 0, partition=5))
    first.apply_outcome(bad(10 * FIRST))
    first.check_at_end()


@pytest.mark.parametrize(("count", "refused"), [(MIN_AT_END - 1, False), (MIN_AT_END, True), (FIRST - 1, True)])
def test_a_drain_with_fewer_is_refused_at_its_end_unless_there_was_only_a_handful(count: int, refused: bool) -> None:
    first = FirstRecordsCheck(None)
    first.apply_outcome(bad(count))
    with pytest.raises(Refused) if refused else nullcontext():
        first.check_at_end()


def test_only_what_is_committed_counts_and_a_share_of_one_allows_all() -> None:
    for status in set(Status) - {Status.COMMITTED}:
        FirstRecordsCheck(None).apply_outcome(replace(bad(FIRST), status=status))
    CircuitBreaker(1.0).apply_outcome(outcome(0, 10 * WINDOW))
    FirstRecordsCheck(1.0).apply_outcome(bad(FIRST))
    with pytest.raises(Refused):
        FirstRecordsCheck(0.999).apply_outcome(bad(FIRST))


def test_a_run_of_weeks_keeps_a_hundred_reasons_however_many_its_function_has() -> None:
    """A reason may quote its record; they were kept for ever, twice."""
    first, progress = FirstRecordsCheck(None), RunProgress()
    good = replace(outcome(1, 0), reasons={}, enriched=1)
    for number in range(200):
        reasons = {f"no customer {number}-{n}": 1 for n in range(50)}
        ended = replace(good, rejected=50, reasons=reasons, examples=dict.fromkeys(reasons, 7))
        first.apply_outcome(ended)
        progress.outcome(ended)
    assert len(first._reasons) + len(first._examples) <= 2 * FIRST
    assert len(progress.reasons) == MAX_REASONS + 1
    assert progress.reasons.total() == progress.totals.rejected == 200 * 50


class Clock:
    """Time as the test sets it."""

    now = 1000.0

    def policy(self, **settings: float) -> GiveUpPolicy:
        return GiveUpPolicy(PipelineSettings(Connection("h:1"), "in", "out", "dead", "g", **settings))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: fake.now)
    return fake


DENIED = "fence: Broker: Transactional Id authorization failed (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)"


@pytest.mark.parametrize(
    ("patience_s", "detail", "until_s"),
    [(120.0, "fence: timed out (_TIMED_OUT)", 120.0), (120.0, DENIED, 10.0), (3.0, DENIED, 3.0)],
)
def test_a_no_is_waited_for_ten_seconds_at_most(clock: Clock, patience_s: float, detail: str, until_s: float) -> None:
    patience = clock.policy(patience_s=patience_s)
    patience.failed("partition 0", detail)
    patience.succeeded()
    clock.now += 3600  # nothing to do in it: that is no time without progress
    patience.failed("partition 0", detail)
    clock.now += until_s
    assert patience.failed("partition 0", detail) > 0
    assert patience.failures == 2
    clock.now += 0.1
    with pytest.raises(Refused, match="no progress for ") as caught:
        patience.failed("partition 0", detail)
    assert detail in str(caught.value)
    assert ("after an authorization failure" in str(caught.value)) is (detail == DENIED)


def test_a_no_after_an_outage_is_waited_for_as_long_as_any_other(clock: Clock) -> None:
    """The ten seconds were over with the outage: a run that lived through it was ended by its first refusal."""
    patience = clock.policy(patience_s=120.0)
    for _ in range(2):  # an outage between denials begins the ten seconds anew
        for waited_s in (0, 30):
            clock.now += waited_s
            patience.failed("survey", "no broker answered")
        clock.now += 5
        patience.failed("partition 0", DENIED)
        clock.now += 10
        patience.failed("partition 0", DENIED)
    clock.now += 0.1
    with pytest.raises(Refused, match=r"no progress for 10 s \(--patience is 10 s at most after an authorization"):
        patience.failed("partition 0", DENIED)


def test_an_outage_of_hours_is_waited_for_while_patience_lasts(clock: Clock) -> None:
    """The 1,024th failure in a row ended the run by an OverflowError: its pause was no float any more."""
    policy = clock.policy(patience_s=86_400.0)
    assert max(policy.failed("survey", "no broker answered") for _ in range(2000)) <= 5.0


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("MSG_SIZE_TOO_LARGE", "max.message.bytes"),
        ("INVALID_TIMESTAMP", "message.timestamp.after.max.ms"),
        ("INVALID_RECORD", "cleanup.policy"),
    ],
)
def test_a_record_that_the_topic_refuses_each_time_ends_the_run_with_the_setting(
    clock: Clock, name: str, setting: str
) -> None:
    """Seen with a dead letter whose headers made it larger than its topic allows."""
    patience = clock.policy(patience_s=10.0)
    detail = f"Abortable: produce: ProduceRequest for dead [0] failed: current transaction must be aborted ({name})"
    patience.failed("partition 0", detail)
    clock.now += 11.0
    with pytest.raises(Refused) as caught:
        patience.failed("partition 0", detail)
    assert setting in str(caught.value)
    assert "run again" in str(caught.value)


def test_a_partition_that_is_denied_ends_the_run_however_well_the_others_go(clock: Clock) -> None:
    """A right on the dead-letter topic is missed in partitions with bad records only."""
    policy = clock.policy()
    denied = Outcome(1, 0, 1, Status.FAILED, 0, detail=DENIED)

    def deny(*, seconds: float) -> None:
        """While the others commit."""
        clock.now = 1000.0 + seconds
        policy.progressed()
        policy.check_denial(outcome(10, 0))
        policy.check_denial(denied)
        policy.failed("partition 1", DENIED)  # the others' commits are progress of the run

    deny(seconds=0.0)
    deny(seconds=10.0)
    policy.check_denial(outcome(1, 0, 1))  # it was granted again
    deny(seconds=20.0)
    deny(seconds=30.0)
    expected = r"no progress in partition 1 for 10 s .*after an authorization failure"
    with pytest.raises(Refused, match=expected) as caught:
        deny(seconds=30.1)
    assert DENIED in str(caught.value)


def test_other_failures_of_one_partition_do_not_end_a_run_that_makes_progress(clock: Clock) -> None:
    policy = clock.policy()
    failed = Outcome(1, 0, 1, Status.FAILED, 0, detail="fence: timed out (_TIMED_OUT)")
    policy.check_denial(failed)
    for _ in range(3):
        clock.now += 3600
        policy.progressed()
        policy.check_denial(failed)
        assert policy.failed("partition 1", failed.detail) > 0


def test_a_partition_that_was_another_drivers_meanwhile_begins_anew(clock: Clock) -> None:
    """The right may have come and gone; this driver did not see it."""
    policy = clock.policy()
    denied = [Outcome(p, 0, 1, Status.FAILED, 0, detail=DENIED) for p in (1, 2)]
    for outcome_of in denied:
        policy.check_denial(outcome_of)
        policy.check_denial(outcome_of)
    policy.keep_denials({2})
    clock.now += 11
    policy.check_denial(denied[0])
    with pytest.raises(Refused, match="no progress in partition 2 for 11 s"):
        policy.check_denial(denied[1])


DENIAL = Outcome(1, 0, 1, Status.FAILED, 0, detail=DENIED)


@pytest.mark.parametrize(
    "meanwhile",
    [[], [replace(DENIAL, detail="fence: timed out (_TIMED_OUT)")], [outcome(1, 0, 1)]],
    ids=["not looked at", "another failure", "a success"],
)
def test_denials_of_one_partition_count_while_there_is_nothing_else(clock: Clock, meanwhile: list[Outcome]) -> None:
    """Two denials with more than ten seconds between them ended a run, whatever came between."""
    policy = clock.policy()
    for pause_s in (0, 31):
        clock.now += pause_s
        policy.check_denial(DENIAL)
        clock.now += 5
        policy.check_denial(DENIAL)
        for another in meanwhile:
            policy.check_denial(another)
    if meanwhile:
        clock.now += 6
        policy.check_denial(DENIAL)


def test_two_denials_far_apart_do_not_end_a_run(clock: Clock) -> None:
    policy = clock.policy()
    policy.check_denial(DENIAL)
    clock.now += 11
    policy.check_denial(DENIAL)
    clock.now += 0.1
    with pytest.raises(Refused, match="no progress in partition 1 for 11 s"):
        policy.check_denial(DENIAL)


def test_denials_that_alternate_with_other_failures_end_a_run_after_its_patience(clock: Clock) -> None:
    policy = clock.policy(patience_s=60.0)
    for _ in range(3):
        policy.failed("partition 0", DENIED)
        clock.now += 20
        policy.failed("survey", "no broker answered")
    clock.now += 0.1
    with pytest.raises(Refused, match=r"no progress for 60 s \(--patience is 60 s"):
        policy.failed("partition 0", DENIED)


def test_another_drivers_partition_that_moves_between_open_transactions_is_progress(clock: Clock) -> None:
    """Each survey may meet it right behind an open transaction; this driver gave up although the other worked."""
    policy = clock.policy()
    for committed in (10, 20, 30):
        clock.now += policy._settings.blocked_patience_s - 1
        facts = PartitionFacts("in", 0, "id", Committed(committed, ""), LogOffsets(0, committed, 100))
        plan = plan_ranges([facts], 100, {0: 100}).split({1})
        policy.blocked(plan.blocked, plan.owned_by_others)
    clock.now += policy._settings.blocked_patience_s + 1
    with pytest.raises(Refused, match=r"partitions \[0\] of in belong to other drivers.*`brew doctor`"):
        policy.blocked(plan.blocked, plan.owned_by_others)


def test_a_log_that_now_ends_below_the_end_of_a_drain_is_not_blamed_on_a_transaction() -> None:
    """An unclean election may truncate the log during the run: nothing is open, and nothing is left to read."""
    truncated = PartitionFacts("in", 0, "id", Committed(90, ""), LogOffsets(0, 90, 90))
    plan = plan_ranges([truncated], 100, {0: 100})
    assert (plan.ranges, plan.blocked, plan.drained) == ((), {}, False)
    policy = GiveUpPolicy(PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "g", blocked_patience_s=1))
    policy._last_progress -= 2
    with pytest.raises(Refused, match="may have been truncated below this run's end") as refused:
        policy.blocked(plan.blocked, plan.owned_by_others)
    assert "partitions []" not in str(refused.value)
