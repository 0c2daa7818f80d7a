"""What a dead letter says of itself, what it becomes when it is written back, and what repairs it; no broker."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
from harness.pages import ROOT, column

from brew.errors import UsageError
from brew.offsets import SourcePosition
from brew.records import ERROR_MESSAGE, ERROR_OMITTED, ERROR_REASON, REPLAYED_COUNT, REPLAYED_FROM, REPLAYED_TIMESTAMP
from operations.dlq.command import Census, report_document, summary
from operations.dlq.dead_letter import DeadLetter, DeadLetterFilter, printable_content, replay_log_key
from operations.dlq.replay import (
    BY_KEY,
    RepairCommand,
    RepairFailed,
    ReplayRecord,
    ReplayReport,
    ReplayRules,
    SkippedDeadLetter,
    SkipReason,
)

SOURCE = SourcePosition("in", 1, 7)
ERRORS = [(ERROR_REASON, b"not-json"), (ERROR_MESSAGE, b"at 3")]
LETTER = DeadLetter(0, 5, b"gold-1", b"x", [("trace", b"t"), *ERRORS, *SOURCE.headers()], 1_700_000_000_000)
RULES = ReplayRules("in", partitions=4, max_bytes=100_000, most_replays=3)


def times(count: int) -> DeadLetter:
    return replace(LETTER, headers=[(REPLAYED_COUNT, b"%d" % count), *LETTER.headers])


def test_a_letter_knows_its_reason_its_source_and_its_own_headers() -> None:
    assert (LETTER.reason, LETTER.message, LETTER.source, LETTER.replays) == ("not-json", "at 3", SOURCE, 0)
    assert LETTER.own_headers == [("trace", b"t")]
    assert not LETTER.omitted
    assert replace(LETTER, headers=[*LETTER.headers, (ERROR_OMITTED, b"9")]).omitted


def test_only_the_last_block_of_error_headers_is_the_pipelines() -> None:
    """An input that was somebody's dead letter itself keeps what it carried."""
    nested = replace(LETTER, headers=[*LETTER.headers, *ERRORS, *SourcePosition("in", 2, 8).headers()])
    assert nested.own_headers == list(LETTER.headers)
    assert nested.source == SourcePosition("in", 2, 8)


def test_a_record_that_no_pipeline_put_there_stays() -> None:
    foreign = replace(LETTER, headers=SOURCE.headers())
    assert (foreign.reason, foreign.source) == ("unknown", None)
    found = RULES.skipped(foreign)
    assert found is not None
    assert found.why is SkipReason.FOREIGN


def test_it_goes_back_to_its_partition_with_headers_that_name_it() -> None:
    """Error and source headers are gone, older replay headers are replaced."""
    back = RULES.back("dead", times(1), b"y")
    assert isinstance(back, ReplayRecord)
    assert (back.partition, back.value) == (1, b"y")
    assert back.headers == [
        ("trace", b"t"),
        (REPLAYED_FROM, b"dead/0/5"),
        (REPLAYED_COUNT, b"2"),
        (REPLAYED_TIMESTAMP, b"1700000000000"),
    ]
    by_key = replace(RULES, by_key=True).back("dead", LETTER, b"y")
    assert isinstance(by_key, ReplayRecord)
    assert by_key.partition == BY_KEY


@pytest.mark.parametrize(
    ("rules", "letter", "why"),
    [
        (RULES, LETTER, None),
        (RULES, times(2), None),
        (RULES, times(3), SkipReason.TOO_OFTEN),
        (replace(RULES, most_replays=0), LETTER, SkipReason.TOO_OFTEN),
        (replace(RULES, input="other"), LETTER, SkipReason.FOREIGN),
        (replace(RULES, partitions=1), LETTER, SkipReason.NO_PARTITION),
        (replace(RULES, partitions=1, by_key=True), LETTER, None),
    ],
)
def test_what_keeps_a_letter_where_it_is(rules: ReplayRules, letter: DeadLetter, why: SkipReason | None) -> None:
    found = rules.skipped(letter)
    assert (None if found is None else found.why) is why


def test_what_the_input_cannot_hold_is_not_tried() -> None:
    """The broker would refuse the whole transaction."""
    found = RULES.back("dead", LETTER, b"z" * 100_000)
    assert isinstance(found, SkippedDeadLetter)
    assert found.why is SkipReason.TOO_LARGE


@pytest.mark.parametrize(
    ("choice", "means"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(reasons=("not-json", "no-value")), True),
        (DeadLetterFilter(reasons=("no-value",)), False),
        (DeadLetterFilter(keys=(b"gold-1",)), True),
        (DeadLetterFilter(keys=(b"gold-2",)), False),
        (DeadLetterFilter(partitions=(1,)), False),
        (DeadLetterFilter(start=5, until=6), True),
        (DeadLetterFilter(start=6), False),
        (DeadLetterFilter(until=5), False),
        (DeadLetterFilter(topic=LETTER.source.topic if LETTER.source else ""), True),
        (DeadLetterFilter(topic="other"), False),
        (DeadLetterFilter(reasons=("not-json",), keys=(b"gold-2",)), False),
    ],
)
def test_a_choice_means_what_fits_all_that_is_set(choice: DeadLetterFilter, *, means: bool) -> None:
    assert choice.matches(LETTER) is means


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, None),
        (b"", {"text": ""}),
        ("caffè\n".encode(), {"text": "caffè\n"}),
        (b"\x1b[31m", {"hex": "1b5b33316d"}),
        (b"\xff", {"hex": "ff"}),
        ("\u202e".encode(), {"hex": "e280ae"}),
    ],
)
def test_bytes_that_a_terminal_might_obey_are_shown_in_hex(content: bytes | None, told: object) -> None:
    assert printable_content(content) == told


def test_an_edit_is_a_filter_and_says_how_it_failed() -> None:
    python = sys.executable
    upper = RepairCommand.parse(f'{python} -c "import sys; sys.stdout.write(sys.stdin.read().upper())"', 10)
    assert (upper(b"abc"), upper(None)) == (b"ABC", b"")
    with pytest.raises(RepairFailed, match="ended with 3: no"):
        RepairCommand.parse(f"{python} -c \"import sys; print('no', file=sys.stderr); sys.exit(3)\"", 10)(b"x")
    with pytest.raises(UsageError, match="can't start 'no-such-command'"):
        RepairCommand.parse("no-such-command", 10)(b"x")
    for wrong in ("", "a 'b"):
        with pytest.raises(UsageError, match="--edit"):
            RepairCommand.parse(wrong, 10)


def test_an_edit_that_takes_too_long_is_ended_with_all_it_started() -> None:
    """A child that holds the pipe open would keep the replay waiting."""
    began = time.monotonic()
    with pytest.raises(RepairFailed, match=r"longer than 0\.3 s"):
        RepairCommand.parse("sh -c 'sleep 30 & sleep 30'", 0.3)(b"x")
    assert time.monotonic() - began < 10


def test_letters_are_counted_by_reason_partition_and_time() -> None:
    census = Census("hour")
    census.add(LETTER, replayed=True)
    census.add(replace(LETTER, timestamp=LETTER.timestamp + 3_600_000), replayed=False)
    census.add(replace(LETTER, timestamp=2**62), replayed=False)  # a time that no calendar has
    told = census.document("dead")
    assert (told["letters"], told["replayed"], told["waiting"], len(told["rows"])) == (3, 1, 2, 3)
    assert "2023-11-14T22:00Z" in [row["time"] for row in told["rows"]]


def test_a_report_counts_what_went_and_what_stays() -> None:
    back = RULES.back("dead", LETTER, b"y")
    assert isinstance(back, ReplayRecord)
    told = report_document(
        ReplayReport([back], [SkippedDeadLetter(LETTER, SkipReason.TOO_OFTEN, "x")]), "dead", "in", dry_run=False
    )
    assert summary(told) == "1 dead letter written back to in; 1 stay: 1 too-often"


def test_a_mark_belongs_to_one_topic_not_to_its_name() -> None:
    assert replay_log_key("id-1", 5) != replay_log_key("id-2", 5)


def test_the_replay_headers_are_those_of_the_page() -> None:
    page = (ROOT / "docs/PROTOCOL.md").read_text()
    assert column(page, "Replayed records") == [REPLAYED_FROM, REPLAYED_COUNT, REPLAYED_TIMESTAMP]
