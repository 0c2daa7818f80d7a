"""Functions of a record in the kernel, against a broker in memory: each answer is written once, with its source."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from clicks_example import LATE, add_domain, add_domain_in_batches
from harness.fakes import Broker, FakeTransaction
from harness.pages import ROOT

from brew.deadline import Deadline
from brew.errors import TransformFailed
from brew.fault_injection import PlannedCrash
from brew.names import CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange, SourcePosition
from brew.outcome import Outcome, Status
from brew.range_transaction import MAX_REASONS, CrashedOnPurposeError, Rows, Targets, transact_range
from brew.record import OTHER_REASONS, Record, Reject, apply, batches
from brew.records import ERROR_EXCEPTION, ERROR_MESSAGE, ERROR_REASON
from brew.settings import OnError
from brew.transformation import FunctionTransformation

TARGETS = Targets("out", "dead", 2, 2, "topic-id=x", 10_000, {f"{LATE}.clicks": 5})
PLAIN, DROP, FAN_OUT, LATER, NO_URL, ERROR = range(6)
CLICKS: list[dict[str, object]] = [
    {"url": "http://a.example/x"},
    {"kind": "drop", "url": "http://b.example"},
    {"kind": "fan-out", "url": "http://c.example"},
    {"kind": "late", "url": "http://d.example", "topic": ".clicks"},
    {"kind": "plain"},
    {"kind": "error", "url": "http://e.example"},
]
CLICK = Record("in", 2, 0, b"k", b"", (), 7)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def rows(*kinds: int, headers: list[Any] | None = None) -> Rows:
    n = len(kinds)
    return Rows(list(range(n)), [b"k"] * n, [orjson.dumps(CLICKS[kind]) for kind in kinds], [headers] * n, [7] * n)


def calling(function: Callable[..., Any] = add_domain, on_error: OnError = OnError.END) -> FunctionTransformation:
    """The transformation that calls this function."""
    return FunctionTransformation("f", frozenset({"out", f"{LATE}.clicks"}), 1000, on_error, function)


def run(broker: Broker, batch: Rows, transformation: FunctionTransformation, **more: Any) -> Outcome:
    prepared = transformation.ready(None, "g", 1)  # type: ignore[arg-type]
    offered = OffsetRange("in", 2, 0, len(batch.offsets) + 1)
    kafka = more.pop("kafka", None) or FakeTransaction(broker)
    return transact_range(
        [batch], offered, TARGETS, None, kafka, Deadline(60), transform=prepared.transform, first_time=True, **more
    )


def test_each_answer_is_written_in_one_transaction_with_its_source(broker: Broker) -> None:
    """Drop, fan-out, route and rejection: inputs = transformed + rejected + dropped, and every identity is its own."""
    outcome = run(broker, rows(PLAIN, DROP, FAN_OUT, LATER, NO_URL, DROP, headers=[("h", b"1")]), calling())
    assert (outcome.status, outcome.enriched, outcome.rejected, outcome.dropped) == (Status.COMMITTED, 3, 1, 2)
    assert (outcome.records, outcome.written, outcome.reasons) == (6, 5, {"no-url": 1})
    written = {(one.topic, SourcePosition.of(one.headers)): one for one in broker.visible()}
    positions = [SourcePosition("in", 2, 2, index) for index in range(3)]
    assert set(written) == {
        ("out", SourcePosition("in", 2, 0)),
        *(("out", one) for one in positions),
        (f"{LATE}.clicks", SourcePosition("in", 2, 3)),
        ("dead", SourcePosition("in", 2, 4)),
    }
    assert orjson.loads(written["out", SourcePosition("in", 2, 0)].value or b"")["domain"] == "a.example"
    assert written["out", positions[1]].value == b'{"copy":1}'
    # The same key, the same partition; another key decides on its own.
    assert [written["out", one].partition for one in positions] == [2, 2, -1]
    late = written[f"{LATE}.clicks", SourcePosition("in", 2, 3)]
    assert (late.partition, late.headers[:2]) == (5, [("h", b"1"), ("late", b"1")])
    assert broker.committed == Committed(7, "topic-id=x")


def test_a_dead_letter_of_a_function_says_why_and_keeps_its_bytes(broker: Broker) -> None:
    run(broker, rows(NO_URL, headers=[("h", b"1")]), calling())
    (dead,) = broker.visible()
    headers = dict(dead.headers)
    assert (dead.topic, dead.value, dead.key, dead.headers[0]) == ("dead", b'{"kind":"plain"}', b"k", ("h", b"1"))
    assert (headers[ERROR_REASON], headers[ERROR_EXCEPTION], dead.timestamp) == (b"no-url", b"Reject", 7)
    assert headers[ERROR_MESSAGE] == b"a click has a url, this one has ['kind']"


def test_an_exception_ends_the_run_and_nothing_of_the_range_is_visible(broker: Broker) -> None:
    with pytest.raises(TransformFailed) as failed:
        run(broker, rows(PLAIN, ERROR, PLAIN), calling())
    for words in ("f raised KeyError: 'nowhere' (clicks_example.py, line", "in[2] offset 1;", "--on-error dead-letter"):
        assert words in str(failed.value)
    assert (broker.visible(), broker.committed) == ([], None)


def test_an_exception_becomes_a_dead_letter_where_that_is_asked_for(broker: Broker) -> None:
    outcome = run(broker, rows(PLAIN, ERROR), calling(on_error=OnError.DEAD_LETTER))
    dead = next(one for one in broker.visible() if one.topic == "dead")
    headers = dict(dead.headers)
    assert (headers[ERROR_REASON], headers[ERROR_EXCEPTION]) == (b"transform-error", b"KeyError")
    assert b"KeyError: 'nowhere'" in (headers[ERROR_MESSAGE] or b"")
    assert (outcome.enriched, outcome.reasons, outcome.examples) == (1, {"transform-error": 1}, {"transform-error": 1})


class WithoutTextError(Exception):
    def __init__(self, text: str | None = None) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text or self.missing  # type: ignore[attr-defined]

    def __bool__(self) -> bool:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WithoutTextError(), "(no text: its __str__ raised AttributeError)"),
        (WithoutTextError("a\ud800"), "a?"),
        (WithoutTextError(404), "(no text: its __str__ raised TypeError)"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("mark", [lambda function: function, batches])
def test_an_exception_without_a_text_of_its_own_ends_like_any_other(
    error: Exception, text: str, mark: Callable[..., Any], broker: Broker
) -> None:
    """It ended as an error of the client, with a stack trace, and was repeated until `--patience`."""

    @mark
    def failing(_record: object) -> None:
        raise error

    with pytest.raises(TransformFailed, match=re.escape(f"raised WithoutTextError: {text} (test_transform_kernel")):
        run(broker, rows(PLAIN), calling(failing))
    run(broker, rows(PLAIN), calling(failing, on_error=OnError.DEAD_LETTER))
    headers = dict(broker.visible()[0].headers)
    assert headers[ERROR_EXCEPTION] == b"WithoutTextError"
    assert (headers[ERROR_MESSAGE] or b"").startswith(f"WithoutTextError: {text} (".encode())


class OwnReject(Reject):
    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


@pytest.mark.parametrize(
    "fields", [{}, {"reason": "old"}, {"reason": 1, "message": ""}, {"reason": "\ud800", "message": ""}]
)
@pytest.mark.parametrize("mark", [lambda function: function, batches])
def test_a_rejection_of_ones_own_that_no_dead_letter_holds_is_an_exception(
    fields: dict[str, object], mark: Callable[..., Any]
) -> None:
    @mark
    def rejecting(_record: object) -> None:
        raise OwnReject(**fields)

    with pytest.raises(TransformFailed, match=r"TypeError: OwnReject has the \w+ .*; a class derived from brew.Reject"):
        run(Broker(), rows(PLAIN), calling(rejecting))


def test_a_rejection_of_ones_own_with_all_fields_is_one(broker: Broker) -> None:
    def rejecting(_record: object) -> None:
        raise OwnReject(reason="old", message="since 2020")

    assert run(broker, rows(PLAIN), calling(rejecting)).reasons == {"old": 1}


@pytest.mark.parametrize("on_error", OnError)
def test_a_topic_that_the_run_does_not_have_ends_it_whatever_the_setting(on_error: OnError) -> None:
    """Nobody would look for such a record among the dead letters: the command line is wrong."""
    expected = r"to 'else'; the run's output topics are late\.clicks, out; name that one"
    with pytest.raises(TransformFailed, match=expected):
        run(Broker(), rows(PLAIN), calling(lambda record: record.to("else"), on_error))


def test_an_output_that_no_topic_holds_is_a_dead_letter_of_that_reason(broker: Broker) -> None:
    """Else the brokers would refuse the transaction again and again."""
    too_large = CLICK.with_value(b"x" * 990).with_headers([("h", b"y" * 10)])
    run(broker, rows(PLAIN), calling(lambda record: [record, too_large]))
    (dead,) = broker.visible()
    assert (dead.topic, dict(dead.headers)[ERROR_REASON]) == ("dead", b"too-large")
    assert dict(dead.headers)[ERROR_MESSAGE] == b"an output has 1002 bytes, the limit is 1000"


def test_rows_below_the_committed_offset_are_not_transformed_again() -> None:
    seen: list[int] = []

    def noting(record: Record) -> Record:
        seen.append(record.offset)
        return record

    broker = Broker(committed=Committed(2, ""))
    assert run(broker, rows(PLAIN, PLAIN, PLAIN, PLAIN), calling(noting)).enriched == 2
    assert seen == broker.sources() == [2, 3]


def test_a_record_of_the_functions_own_gets_the_inputs_timestamp_and_source(broker: Broker) -> None:
    """0 would be the time of writing, which nobody could prove."""
    run(broker, rows(PLAIN), calling(lambda _record: Record(key=b"new", value=b"v")))
    (one,) = broker.visible()
    assert (one.timestamp, one.partition, SourcePosition.of(one.headers)) == (7, -1, SourcePosition("in", 2, 0))


def test_reasons_beyond_some_are_counted_together(broker: Broker) -> None:
    """A reason with a record's id in it would make a metric without an end."""

    def own_reason(record: Record) -> None:
        raise Reject(f"reason-{record.offset}")

    outcome = run(broker, rows(*[PLAIN] * (MAX_REASONS + 9)), calling(own_reason))
    assert len(outcome.reasons) == MAX_REASONS + 1
    assert (outcome.reasons[OTHER_REASONS], outcome.rejected) == (9, MAX_REASONS + 9)


@pytest.mark.parametrize("point", [one for one in CrashPoint if one is not CrashPoint.BEFORE_REPORT])
def test_a_crash_with_fan_out_leaves_all_or_nothing_and_is_healed(point: CrashPoint, broker: Broker) -> None:
    with pytest.raises(CrashedOnPurposeError) as crash:
        run(broker, rows(FAN_OUT, FAN_OUT), calling(), crash=PlannedCrash(point, CrashMode.PIPELINE))
    if point is CrashPoint.MID_PRODUCE:
        assert (crash.value.tally.written, crash.value.tally.enriched, len(broker.log)) == (3, 1, 3)
    run(broker, rows(FAN_OUT, FAN_OUT), calling())
    positions = [SourcePosition.of(one.headers) for one in broker.visible()]
    assert positions == [SourcePosition("in", 2, offset, index) for offset in range(2) for index in range(3)]


def test_an_index_that_came_with_the_input_is_not_ours(broker: Broker) -> None:
    """The input may be another pipeline's fan-out: its headers stand before ours."""
    older = SourcePosition("first", 1, 8, 2).headers()
    run(broker, rows(PLAIN, FAN_OUT, headers=older), calling())
    positions = [SourcePosition.of(one.headers) for one in broker.visible()]
    assert positions == [SourcePosition("in", 2, 0), *(SourcePosition("in", 2, 1, index) for index in range(3))]
    assert SourcePosition.of(older) == SourcePosition.parse("first/1/8#2") == SourcePosition("first", 1, 8, 2)
    assert str(SourcePosition("first", 1, 8, 2)) == "first/1/8#2"


# Whole batches.


def test_a_function_of_batches_answers_by_offset(broker: Broker) -> None:
    """An offset that is missing was dropped, one that stands several times fans out, a reason rejects."""
    outcome = run(broker, rows(PLAIN, DROP, FAN_OUT, NO_URL, headers=[("h", b"1")]), calling(add_domain_in_batches))
    assert (outcome.enriched, outcome.rejected, outcome.dropped, outcome.written) == (2, 1, 1, 4)
    first = broker.visible()[0]
    assert (first.key, first.timestamp, first.headers[0]) == (b"k", 7, ("h", b"1"))
    sources = [SourcePosition.of(one.headers) for one in broker.visible()]
    assert [one.index for one in sources if one is not None] == [0, 0, 1, 2, 0]


def test_an_exception_in_a_batch_names_its_record() -> None:
    with pytest.raises(TransformFailed, match=r"offset 2;"):
        run(Broker(), rows(PLAIN, PLAIN, ERROR), calling(add_domain_in_batches))
    outcome = run(Broker(), rows(PLAIN, ERROR, PLAIN), calling(add_domain_in_batches, OnError.DEAD_LETTER))
    assert (outcome.enriched, outcome.examples) == (2, {"transform-error": 1})


@pytest.mark.parametrize("mark", [lambda function: function, batches])
def test_a_function_that_exits_ends_the_run_or_makes_a_dead_letter_as_any_exception_does(
    mark: Callable[..., Any],
) -> None:
    """One of batches ended the run and its process, whatever the setting."""

    @mark
    def exiting(given: Any) -> Any:
        values = [given.value] if isinstance(given, Record) else given["value"].to_pylist()
        return sys.exit(3) if orjson.dumps(CLICKS[ERROR]) in values else given

    with pytest.raises(TransformFailed, match=r"f raised SystemExit: 3 .* offset 2;"):
        run(Broker(), rows(PLAIN, PLAIN, ERROR), calling(exiting))
    outcome = run(Broker(), rows(PLAIN, ERROR, PLAIN), calling(exiting, OnError.DEAD_LETTER))
    assert (outcome.enriched, outcome.examples) == (2, {"transform-error": 1})


# The guide's page.


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/your-own-function.md").read_text(), re.DOTALL)


def test_the_functions_of_the_page_do_what_it_says() -> None:
    clicks, upper, _script = EXAMPLES
    namespace: dict[str, Any] = {}
    exec(compile(clicks, "clicks.py", "exec"), namespace)
    exec(compile(upper, "upper.py", "exec"), namespace)
    click = Record("clicks", 0, 1, value=b'{"url":"http://a.example/x"}')
    answers = apply(namespace["add_domain"], click)
    assert isinstance(answers, tuple)
    assert answers[0].json()["domain"] == "a.example"
    assert apply(namespace["add_domain"], click.with_json({"bot": True})) == ()
    assert str(apply(namespace["add_domain"], click.with_json({}))).startswith("no-url: ")
    assert apply(namespace["upper"], click.with_value(b"a")) == (click.with_value(b"A"),)


def test_the_script_of_the_page_uses_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the loop taken out: names, parameters and fields are the code's."""
    runs: list[dict[str, Any]] = []

    def work(settings: Any, _stop: Any, progress: Any, _view: Any) -> None:
        runs.append({"follow": settings.follow, "dlq": settings.dead_letter, "group": settings.group})
        progress.outcome(Outcome(0, 0, 3, Status.COMMITTED, enriched=2, rejected=1, written=2, reasons={"no-url": 1}))

    monkeypatch.setattr("brew.pipeline.work", work)
    exec(compile(EXAMPLES[2], "script.py", "exec"), (namespace := {}))  # type: ignore[var-annotated]
    names = {"dlq": "clicks.enriched.dlq", "group": "brew-clicks.enriched"}
    assert runs == [{"follow": False, **names}, {"follow": True, **names}]
    assert (namespace["result"].transformed, namespace["result"].reasons) == (2, {"no-url": 1})
