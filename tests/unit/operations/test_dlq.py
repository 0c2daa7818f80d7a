"""Dead letters: what each says of itself, what a replay writes and believes of its marks; no broker."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from harness.fakes import Broker, FakeTransaction
from harness.pages import ROOT, column
from harness.records import FakeRecord
from rich.console import Console

from brew.cli import exit_code_of
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal, Refused, UsageError
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.names import READ_COMMITTED, ExitCode
from brew.offsets import Committed, LogOffsets, SourcePosition
from brew.records import (
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_OMITTED,
    ERROR_OMITTED_HEADERS,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
    REPLAYED_COUNT,
    REPLAYED_FROM,
    REPLAYED_TIMESTAMP,
)
from brew.signals import Stopped
from downstream.virtual import call as caller
from operations.dlq import command, dead_letter_reader
from operations.dlq import replay as replaying
from operations.dlq.command import counts_document, report_document, summary
from operations.dlq.dead_letter_reader import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterTopics,
    ReplayLog,
    printable_content,
    replay_log_key,
)
from operations.dlq.replay import RepairCommand, ReplayRecord, ReplayRules, SkippedDeadLetter, SkipReason, replay
from pipeline.__main__ import cli

SOURCE = SourcePosition("in", 1, 7)
ERRORS = [(ERROR_REASON, b"not-json"), (ERROR_MESSAGE, b"at 3")]
LETTER = DeadLetter(0, 5, b"gold-1", b"x", [("trace", b"t"), *ERRORS, *SOURCE.headers()], 1_700_000_000_000)
FOREIGN = replace(LETTER, headers=SOURCE.headers())
OMITTING = replace(LETTER, value=None, headers=[*ERRORS, (ERROR_OMITTED, b"1"), *SOURCE.headers()])
RULES = ReplayRules("in", partitions=4, max_bytes=100_000, most_replays=3)


def times(count: int) -> DeadLetter:
    return replace(LETTER, headers=[(REPLAYED_COUNT, b"%d" % count), *LETTER.headers])


def test_a_letter_knows_its_reason_its_source_and_its_own_headers() -> None:
    """An input that was somebody's dead letter itself keeps what it carried: the last block is the pipeline's."""
    assert (LETTER.reason, LETTER.message, LETTER.source, LETTER.replays) == ("not-json", "at 3", SOURCE, 0)
    assert LETTER.own_headers == [("trace", b"t")]
    foreign = replace(LETTER, headers=[(REPLAYED_COUNT, b"1" * 5_000), *LETTER.headers])
    assert (times(10**9 - 1).replays, foreign.replays) == (10**9 - 1, 0)
    assert (FOREIGN.reason, FOREIGN.source) == ("unknown", None)
    assert not LETTER.omitted
    assert replace(LETTER, headers=[*LETTER.headers, (ERROR_OMITTED, b"9")]).omitted
    assert not LETTER.headers_omitted
    assert replace(LETTER, headers=[*LETTER.headers, (ERROR_OMITTED_HEADERS, b"1")]).headers_omitted
    nested = replace(LETTER, headers=[*LETTER.headers, *ERRORS, *SourcePosition("in", 2, 8).headers()])
    assert (nested.own_headers, nested.source) == (list(LETTER.headers), SourcePosition("in", 2, 8))


def test_it_goes_back_to_its_partition_with_headers_that_name_it() -> None:
    back = RULES.replay_record("dead", times(1), b"y")
    assert isinstance(back, ReplayRecord)
    assert (back.partition, back.value) == (1, b"y")
    assert back.headers == [
        ("trace", b"t"),
        (REPLAYED_FROM, b"dead/0/5"),
        (REPLAYED_COUNT, b"2"),
        (REPLAYED_TIMESTAMP, b"1700000000000"),
    ]
    by_key = replace(RULES, by_key=True).replay_record("dead", LETTER, b"y")
    assert isinstance(by_key, ReplayRecord)
    assert by_key.partition == replaying.BY_KEY


@pytest.mark.parametrize(
    ("rules", "letter", "why"),
    [
        (RULES, LETTER, None),
        (RULES, FOREIGN, SkipReason.FOREIGN),
        (RULES, times(2), None),
        (RULES, times(3), SkipReason.TOO_OFTEN),
        (replace(RULES, most_replays=0), LETTER, SkipReason.TOO_OFTEN),
        (replace(RULES, input="other"), LETTER, SkipReason.FOREIGN),
        (replace(RULES, partitions=1), LETTER, SkipReason.NO_PARTITION),
        (replace(RULES, partitions=1, by_key=True), LETTER, None),
        (replace(RULES, partitions=1, by_key=True), OMITTING, SkipReason.BYTES_GONE),
        (replace(RULES, partitions=2), OMITTING, None),
    ],
)
def test_what_keeps_a_letter_where_it_is(rules: ReplayRules, letter: DeadLetter, why: SkipReason | None) -> None:
    """Also what the input cannot hold: the broker would refuse the whole transaction."""
    skipped = rules.skipped(letter)
    assert (None if skipped is None else skipped.why) is why
    large = RULES.replay_record("dead", LETTER, b"z" * 100_000)
    assert isinstance(large, SkippedDeadLetter)
    assert large.why is SkipReason.TOO_LARGE


def written_by_call(monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, bytes]]) -> DeadLetter:
    """The dead letter that `brew call` writes for a record of `out` with these headers."""
    client = Mock()
    client.flush.return_value = 0
    monkeypatch.setattr(caller, "producer", lambda *_given, **_settings: client)
    record = FakeRecord(9, b"gold-1", b"enriched", headers=headers)
    caller.Caller("http://nowhere", 5.0, NOWHERE, "out", "calls", 1).give_up(record, ValueError("no"), 1)
    written = [(name, text if isinstance(text, bytes) else text.encode()) for name, text in _headers_of(client)]
    return DeadLetter(0, 5, b"gold-1", b"enriched", written, 0)


def _headers_of(client: Mock) -> list[tuple[str, str | bytes]]:
    return client.produce.call_args.kwargs["headers"]


@pytest.mark.parametrize("topic", ["in", "out"])
def test_an_output_whose_call_failed_is_no_record_of_the_input(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Its headers name its source: it was written to the pipeline's input, and its order was processed twice."""
    headers = [("trace", b"t"), *SourcePosition("in", 1, 7, 1).headers()]
    skipped = replace(RULES, input=topic).skipped(written_by_call(monkeypatch, headers))
    assert skipped is not None
    assert skipped.why is SkipReason.FOREIGN
    assert "its record is out/3/9, an output of in/1/7#1, and not of the input" in skipped.message
    assert ("`brew call --topic`" in skipped.message, "--input" in skipped.message) == (True, False)


def test_a_record_that_no_pipeline_wrote_goes_back_to_the_topic_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    letter = written_by_call(monkeypatch, [("trace", b"t")])
    assert (letter.source, letter.output) == (SourcePosition("out", 3, 9), None)
    assert replace(RULES, input="out").skipped(letter) is None


def test_a_letter_of_a_pipeline_that_reads_outputs_is_a_record_of_its_input() -> None:
    """The last headers of a name count: the source of its input, and a call's errors there, come before."""
    place = [(ERROR_TOPIC, b"in"), (ERROR_PARTITION, b"1"), (ERROR_OFFSET, b"7")]
    carried = [*SourcePosition("first", 0, 3).headers(), *ERRORS, (ERROR_TOPIC, b"out"), (ERROR_OFFSET, b"1")]
    letter = replace(LETTER, headers=[*carried, *ERRORS, *place, *SOURCE.headers()])
    assert (letter.output, RULES.skipped(letter)) == (None, None)


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


@pytest.mark.parametrize("offsets", ["5:1", "5:5", ":0", "1", "a:", "1:-2"])
def test_a_range_that_nothing_can_fit_is_refused(offsets: str) -> None:
    with pytest.raises(UsageError, match=f"--offsets is '{offsets}'"):
        command._choice((), (), (), offsets)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, None),
        (b"", {"text": ""}),
        ("caffè\n".encode(), {"text": "caffè\n"}),
        (b"\x1b[31m", {"hex": "1b5b33316d"}),
        (b"\xff", {"hex": "ff"}),
        ("\u202e".encode(), {"hex": "e280ae"}),
    ],
)
def test_bytes_that_a_terminal_might_obey_are_shown_in_hex(content: bytes | None, shown: object) -> None:
    assert printable_content(content) == shown


def test_an_edit_is_a_filter_and_says_how_it_failed() -> None:
    """A child that holds the pipe open would keep the replay waiting: one that takes too long ends with all of it."""
    python = sys.executable
    upper = RepairCommand.parse(f'{python} -c "import sys; sys.stdout.write(sys.stdin.read().upper())"', 10)
    assert (upper(b"abc"), upper(None)) == (b"ABC", b"")
    with pytest.raises(replaying.RepairFailed, match="exited with 3: no"):
        RepairCommand.parse(f"{python} -c \"import sys; print('no', file=sys.stderr); sys.exit(3)\"", 10)(b"x")
    with pytest.raises(UsageError, match="can't start 'no-such-command'"):
        RepairCommand.parse("no-such-command", 10)(b"x")
    for wrong in ("", "a 'b"):
        with pytest.raises(UsageError, match="--edit"):
            RepairCommand.parse(wrong, 10)
    began = time.monotonic()
    with pytest.raises(replaying.RepairFailed, match=r"longer than 0\.3 s"):
        RepairCommand.parse("sh -c 'sleep 30 & sleep 30'", 0.3)(b"x")
    assert time.monotonic() - began < 10


def test_an_edit_that_writes_without_end_takes_no_more_memory_than_a_value_needs() -> None:
    """All of it was kept until the time-out: gigabytes, or a MemoryError that ended the replay with a stack trace."""
    for stream, why in (("stdout", "wrote more than 67,108,864 bytes"), ("stderr", r"longer than 0\.5 s")):
        endless = f"{sys.executable} -c \"import sys\nwhile True: sys.{stream}.write('x' * 65536)\""
        with pytest.raises(replaying.RepairFailed, match=why):
            RepairCommand.parse(endless, 20 if stream == "stdout" else 0.5)(b"x")


def test_an_edit_need_not_read_its_input_nor_end_when_it_has_written() -> None:
    assert RepairCommand.parse("echo mended", 10)(b"x" * 1_000_000) == b"mended\n"
    with pytest.raises(replaying.RepairFailed, match=r"longer than 0\.3 s"):
        RepairCommand.parse("sh -c 'echo a; exec >&- 2>&-; sleep 30'", 0.3)(b"x")


def test_letters_are_counted_by_reason_partition_and_time_and_a_report_by_what_stays() -> None:
    later = replace(LETTER, timestamp=LETTER.timestamp + 3_600_000)
    nowhen = replace(LETTER, timestamp=2**62)  # a time that no calendar has
    document = counts_document("dead", [(LETTER, True), (later, False), (nowhen, False)], "hour")
    assert (document["letters"], document["replayed"], document["waiting"], len(document["rows"])) == (3, 1, 2, 3)
    assert "2023-11-14T22:00Z" in [row["time"] for row in document["rows"]]
    done = [RULES.replay_record("dead", LETTER, b"y"), SkippedDeadLetter(LETTER, SkipReason.TOO_OFTEN, "x")]
    report = report_document(done, "dead", "in", dry_run=False)
    assert summary(report) == "1 dead letter written back to in; 1 not replayed: 1 too-often"


def test_a_time_that_a_letter_has_not_is_not_made_up() -> None:
    """It was 1970-01-01, or a millisecond before: -1 is a record without a timestamp, which any producer may write."""
    letters = [replace(LETTER, timestamp=ms) for ms in (-1, LETTER.timestamp, 2**62)]
    for each in letters:
        assert (
            command.letter_document(each, replayed=False)["timestamp"]
            == {
                -1: None,
                LETTER.timestamp: "2023-11-14T22:13:20.000Z",
                2**62: str(2**62),
            }[each.timestamp]
        )
    day, unknown = counts_document("dead", [(each, False) for each in letters], "day")["rows"]
    assert (day["time"], day["oldest"], unknown["time"]) == ("2023-11-14", "2023-11-14T22:13:20.000Z", "unknown")
    assert (unknown["letters"], unknown["oldest"], unknown["newest"]) == (2, str(2**62), str(2**62))


def test_a_letter_does_not_claim_what_only_the_input_has() -> None:
    """Its own headers count its replays: without them, it showed `replays_before` 0, and an omitted value as null."""
    omitted = [(ERROR_OMITTED, b"9"), (ERROR_OMITTED_HEADERS, b"1")]
    whole, part = times(2), replace(times(2), value=None, headers=[*LETTER.headers[1:], *omitted])
    documents = [
        command.letter_document(each, replayed=False) for each in (whole, part, replace(FOREIGN, timestamp=-1))
    ]
    assert [each["replays_before"] for each in documents] == [2, None, 0]
    console = Console(file=io.StringIO(), width=100)
    console.print(*map(command.letter_table, documents[1:]))
    text = console.file.getvalue()
    assert "unknown: its own headers are only on the input" in text
    assert "(only on the input)" in text
    assert "None" not in text
    assert "null" not in text


def test_a_reason_that_another_program_wrote_does_not_control_the_terminal() -> None:
    red = replace(LETTER, headers=[(ERROR_REASON, b"\x1b[31mred")], timestamp=-1)
    console = Console(file=io.StringIO(), width=200)
    console.print(command.counts_table(counts_document("dead", [(red, False)])))
    (row,) = [line for line in console.file.getvalue().splitlines() if "red" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [r"\x1b[31mred", "0", "1", "0", "1", "-", "-"]


def test_marks_and_headers_are_those_of_the_page_and_a_mark_belongs_to_one_topic_not_to_its_name() -> None:
    assert replay_log_key("id-1", 5) != replay_log_key("id-2", 5)
    page = (ROOT / "docs/PROTOCOL.md").read_text()
    assert column(page, "Replayed records") == [REPLAYED_FROM, REPLAYED_COUNT, REPLAYED_TIMESTAMP]


NOWHERE = Connection("nowhere")
SENDING = TransactionSettings(NOWHERE, "g.replay", 5.0)
SETTINGS = replaying.ReplaySettings("g", SENDING, replace(RULES, partitions=1), DeadLetterFilter())


def letter(offset: int) -> DeadLetter:
    headers = [(ERROR_REASON, b"not-json"), *SourcePosition("in", 0, offset).headers()]
    return DeadLetter(0, offset, b"k", b"x", headers, 0)


def foreign(offset: int) -> DeadLetter:
    return DeadLetter(0, offset, b"k", b"x", [], 0)


class FakeReplayLog(ReplayLog):
    """Marks of which another replay's are committed, and come to be visible behind our fence only."""

    def __init__(self, hidden: set[int], steps: list[str]) -> None:
        super().__init__(NOWHERE, "dlq.replayed", 0, "id")
        self.hidden, self.steps = hidden, steps

    def follow(self, *_how: object) -> None:
        self.steps.append("follow")

    def read_to_end(self, *_how: object) -> None:
        self.steps.append("read_to_end")
        self.offsets |= self.hidden


class ReplayScene:
    """One dead-letter partition, and what a replay does on it, in ``told``; its transaction fails at one step."""

    def __init__(self, *letters: DeadLetter, hidden: Iterable[int] = (), fails_at: str = "") -> None:
        self.steps: list[str] = []
        self.broker, self.admin, self.fails_at = Broker(), None, fails_at
        self.dead_letter = SimpleNamespace(name="dlq", topic_id="id")
        self.replayed = FakeReplayLog(set(hidden), self.steps)
        self.partitions = lambda _chosen: [0]
        self.letters = lambda _partitions: ([one] for one in letters)
        self.whole = lambda letter: letter
        self.replay_log = lambda _partition: self.replayed
        self.create_replay_log = lambda: SimpleNamespace(topic_id="marks-id")

    @property
    def produced(self) -> list[tuple[str, bytes | None]]:
        visible = self.broker.visible()
        return [(record.topic, record.value if record.topic == "in" else record.key) for record in visible]

    @property
    def position(self) -> int | None:
        return self.broker.committed and self.broker.committed.offset


class Transaction(FakeTransaction):
    def __init__(self, scene: ReplayScene) -> None:
        super().__init__(scene.broker, (scene.fails_at, Fatal("no")))
        self.steps = scene.steps

    def close(self) -> None:
        self.steps.append("close")


Skipped = list[tuple[int, SkipReason]]
Replays = Callable[[ReplayScene], tuple[list[int], Skipped]]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    """Replays what a place has; with the offsets written back, and those skipped with the reason."""

    def run(scene: ReplayScene) -> tuple[list[int], Skipped]:
        monkeypatch.setattr(replaying, "KafkaTransaction", lambda *_how: Transaction(scene))
        done = list(chain.from_iterable(replay(scene, SETTINGS)))
        skipped = [(one.letter.offset, one.why) for one in done if isinstance(one, SkippedDeadLetter)]
        return [one.letter.offset for one in replaying.written_back(done)], skipped

    return run


def test_a_letter_whose_headers_stayed_on_the_input_is_replayed_no_more_often(replays: Replays) -> None:
    """They hold the count; without them, a record that is rejected again and again would never be left."""
    referring = replace(letter(5), headers=[*letter(5).headers, (ERROR_OMITTED_HEADERS, b"1")])
    scene = ReplayScene(referring)
    for count in (RULES.most_replays, RULES.most_replays - 1):
        own = (REPLAYED_COUNT, b"%d" % count)
        scene.whole = lambda known, own=own: replace(known, headers=[own, *known.headers])
        assert replays(scene) == (([5], []) if count < RULES.most_replays else ([], [(5, SkipReason.TOO_OFTEN)]))
    (written, _mark) = scene.broker.visible()
    assert dict(written.headers)[REPLAYED_COUNT] == b"%d" % RULES.most_replays


def test_a_letter_whose_mark_is_seen_behind_the_fence_only_is_not_written_back(replays: Replays) -> None:
    """Another replay committed it a moment ago; and a second replay sees the first one's marks."""
    scene = ReplayScene(letter(5), letter(6), hidden={5})
    assert replays(scene) == ([6], [(5, SkipReason.REPLAYED)])
    written = [("in", b"x"), ("dlq.replayed", replay_log_key("id", 6))]
    assert scene.produced == written
    assert scene.steps.index("fence") < scene.steps.index("read_to_end") < scene.steps.index("begin")
    assert (replays(scene)[0], scene.produced) == ([], written)


def test_each_transaction_settles_the_marks_again_and_the_first_letter_that_waits_holds_all(
    replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round fences anew, so somebody else may have been there in between."""
    monkeypatch.setattr(replaying, "_MOST_LETTERS", 1)
    scene = ReplayScene(letter(5), foreign(6), letter(7), foreign(8), letter(9))
    assert (replays(scene)[0], scene.position) == ([5, 7, 9], 6)
    assert scene.steps.count("read_to_end") == scene.steps.count("fence") == scene.steps.count("commit") == 3


def test_a_record_keeps_its_key_and_partition_and_its_mark_is_in_the_dead_letters_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mark in another partition would not be found again. A dry run opens no transaction, but shows the same."""
    scene = ReplayScene(replace(LETTER, partition=2, value=None))
    scene.partitions = lambda _chosen: [2]
    transaction = Mock(side_effect=lambda *_how: Transaction(scene))
    monkeypatch.setattr(replaying, "KafkaTransaction", transaction)
    edit: Any = lambda value: b"mended" if value is None else b""  # noqa: E731
    settings = replace(SETTINGS, rules=RULES, edit=edit)
    planned = list(replay(scene, replace(settings, dry_run=True)))
    assert (transaction.called, list(replay(scene, settings))) == (False, planned)
    assert transaction.call_args_list == [call(SENDING, "dlq", 2)]
    assert [(one.topic, one.partition, one.key) for one in scene.broker.visible()] == [
        ("in", 1, b"gold-1"),
        ("dlq.replayed", 2, replay_log_key("id", 5)),
    ]
    assert scene.broker.visible()[0].value == b"mended"


def test_a_transaction_takes_letters_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "_MOST_LETTERS", 2)
    monkeypatch.setattr(replaying, "_MOST_BYTES", 10)
    letters: Any = [SimpleNamespace(size=size) for size in (3, 3, 3, 7, 5, 11, 1)]
    chunks = [[one.size for one in chunk] for chunk in replaying._chunks(iter([letters[:3], letters[3:]]))]
    assert chunks == [[3, 3], [3, 7], [5], [11], [1]]


def test_a_replay_commits_under_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the pipeline's, it would move the pipeline's own offsets. A dry run creates no topic."""
    monkeypatch.setattr(command.topics, "describe_one", lambda *_: SimpleNamespace(partitions=4))
    monkeypatch.setattr(command.topics, "max_message_bytes", lambda *_: 1000)
    place: Any = SimpleNamespace(admin=None, connection=NOWHERE, check_cleanup_policy=Mock())
    option = {"dry_run": True, "group": "g", "transaction_timeout": 5.0, "most_replays": 3, "by_key": False}
    found = command._settings(place, "in", DeadLetterFilter(), None, option | {"crash_point": None})
    assert (found.group, found.transaction.group, found.dry_run) == ("g", "g.dlq-replay", True)
    assert place.check_cleanup_policy.called, "it would show letters of which the replay log has lost the entries"


TOPICS = DeadLetterTopics(NOWHERE, None, Topic("dlq", "id", 1, 1), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "kept"), [("compact", True), ("", True), ("delete", False), ("compact,delete", False)]
)
def test_a_replay_log_that_retention_deletes_from_is_refused(
    monkeypatch: pytest.MonkeyPatch, policy: str, *, kept: bool
) -> None:
    """After its retention, old letters were written back once more. The brokers are asked once, not per transaction."""
    asked = Mock(return_value=policy)
    monkeypatch.setattr(dead_letter_reader.topics, "cleanup_policy", asked)
    there = replace(TOPICS, marks=Topic("dlq.replayed", "marks", 1, 1))
    for check in (there.create_replay_log, there.check_cleanup_policy):
        if kept:
            check()
        else:
            with pytest.raises(Refused, match=rf"dlq\.replayed has cleanup\.policy {policy}: .*=compact`"):
                check()
    assert asked.call_count == (1 if kept else 2)
    TOPICS.check_cleanup_policy()  # nothing was ever replayed


def test_a_replay_log_that_may_not_be_created_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic made with Kafka's defaults has one partition and loses its entries after a week."""
    refused = Refused("topic 'dlq.replayed' is missing and could not be made: no; make it by hand")
    monkeypatch.setattr(dead_letter_reader.topics, "create", Mock(side_effect=refused))
    with pytest.raises(Refused, match=r"by hand; made by hand, it needs 1 partition and cleanup\.policy=compact$"):
        replace(TOPICS).create_replay_log()


def test_dead_letters_are_read_as_far_as_readers_are_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an aborted transaction come again, from the attempt after it."""
    spans = list[object]()
    monkeypatch.setattr(dead_letter_reader, "log_offsets", lambda *_: {0: LogOffsets(3, 8, 12)})
    monkeypatch.setattr(
        dead_letter_reader, "scan", lambda _c, _t, ranges, isolation: spans.append((ranges[0], isolation)) or []
    )
    for start, until in ((0, None), (5, 10), (0, 6)):
        list(TOPICS.letters([0], start, until))
    assert spans == [(span, READ_COMMITTED) for span in ((3, 8), (5, 8), (3, 6))]


def referring(value_bytes: str | None, headers: str | None) -> DeadLetter:
    """A dead letter that omits its record's value, of so many bytes, or so many headers, or both."""
    omitted = [(ERROR_OMITTED, value_bytes), (ERROR_OMITTED_HEADERS, headers)]
    own = LETTER.own_headers if headers is None else []
    errors = [(name, text.encode()) for name, text in omitted if text is not None]
    value = b"whole" if value_bytes is None else None
    return replace(LETTER, value=value, headers=[*own, *ERRORS, *errors, *SOURCE.headers()])


def test_a_transaction_counts_the_values_that_it_fetches() -> None:
    """A letter without its value had a few bytes: a transaction of 1000 held as many whole values in memory."""
    own = sum(len(name) + len(text or b"") for name, text in referring("5", None).headers) + len(b"gold-1")
    assert (referring("5", None).size, referring(None, None).size) == (own + 5, LETTER.size + len(b"whole") - len(b"x"))
    assert referring(None, "1").size > 1024 * 1024
    assert referring("no number", None).size == own + len("no number") - len("5")
    many = [replace(referring("3000000", None), offset=offset) for offset in range(5)]
    assert [len(chunk) for chunk in replaying._chunks(iter([many]))] == [2, 2, 1]


def test_what_stayed_on_the_input_is_taken_from_there_as_long_as_it_is_the_same_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that was created again has another record at that offset."""
    came = FakeRecord(7, b"gold-1", b"whole", headers=[("trace", b"t")])
    log = LogOffsets(7, 8, 9)
    monkeypatch.setattr(dead_letter_reader, "log_offsets", lambda *_: {1: log})
    monkeypatch.setattr(dead_letter_reader, "scan", lambda *_: [[came]])
    valueless, headless = referring("5", None), referring(None, "1")
    assert TOPICS.whole(valueless) == replace(valueless, value=b"whole")
    assert TOPICS.whole(headless) == replace(headless, headers=[("trace", b"t"), *headless.headers])
    assert TOPICS.whole(referring("5", "1")).value == b"whole"
    others = [
        replace(valueless, key=b"gold-2"),
        replace(valueless, headers=[("trace", b"u"), *valueless.error_headers]),
        referring("6", None),
        referring("5", "2"),
        replace(headless, value=b"other"),
        referring(None, "2"),
    ]
    for other in others:
        with pytest.raises(LookupError, match="in/1/7 no longer holds"):
            TOPICS.whole(other)
    came = FakeRecord(7, b"gold-1", None, headers=[("trace", b"t")])
    with pytest.raises(LookupError, match="in/1/7 no longer holds"):
        TOPICS.whole(valueless)
    came, log = FakeRecord(7, b"gold-1", b"whole", headers=[("trace", b"t")]), LogOffsets(0, 7, 9)
    with pytest.raises(LookupError, match="in/1/7 no longer holds"):
        TOPICS.whole(valueless)


@pytest.mark.parametrize("step", ["flush", "send-offsets"])
def test_a_transaction_that_failed_marks_nothing(replays: Replays, step: str) -> None:
    scene = ReplayScene(letter(5), fails_at=step)
    with pytest.raises(Fatal):
        replays(scene)
    assert (scene.steps[-2:], scene.produced, scene.replayed.offsets) == (["abort", "close"], [], set())
    scene.fails_at = ""
    assert replays(scene)[0] == [5]


@pytest.mark.parametrize(
    ("stop", "code"),
    [(Fatal("flush: no"), ExitCode.REFUSED), (Stopped(15, None), 143), (BrokenPipeError(), ExitCode.REFUSED)],
)
def test_a_replay_that_fails_says_how_many_letters_it_wrote_back_before(
    stop: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is committed stays so: without its number, a person does not know whether to run it again."""

    def breaks_off(_place: object, _settings: object) -> Iterator[list[ReplayRecord]]:
        yield [ReplayRecord(letter(offset), 0, b"x", []) for offset in (5, 6)]
        raise stop

    monkeypatch.setattr(command, "open_dead_letter_topics", lambda *_what: None)
    monkeypatch.setattr(command, "_settings", lambda *_what: SETTINGS)
    monkeypatch.setattr(command, "replay", breaks_off)
    words = ["dlq", "replay", "--input", "in", "--json", "--bootstrap", "127.0.0.1:1"]
    assert exit_code_of(cli, "brew", words) == code
    output = capfd.readouterr()
    known = "at least 2 dead letters written back to in before this"
    said = "the reader of its output is gone" if isinstance(stop, BrokenPipeError) else known
    assert (said in output.err, "run the same command again: it skips" in output.err, output.out) == (True, True, "")
    if isinstance(stop, Fatal):
        assert json.loads(output.err)["next"].startswith("check that the brokers are running")


def test_the_position_stands_before_the_first_letter_that_waits_and_never_goes_back(replays: Replays) -> None:
    """A letter that stays holds it; a later replay of what lies below does not move it back."""
    scene = ReplayScene(letter(5), foreign(6), letter(7))
    assert (replays(scene)[1], scene.position) == ([(6, SkipReason.FOREIGN)], 6)
    assert scene.broker.committed is not None
    scene.broker.committed = replace(scene.broker.committed, offset=9)
    scene.replayed.offsets.clear()
    replays(scene)
    assert scene.position == 9


@pytest.mark.parametrize("metadata", ["", "topic-id=older marks-id=marks-id"])
def test_a_position_of_another_topic_or_of_somebody_else_is_not_kept(replays: Replays, metadata: str) -> None:
    scene = ReplayScene(letter(5))
    scene.broker.committed = Committed(99, metadata)
    replays(scene)
    assert scene.position == 6


def test_marks_of_another_group_and_those_that_were_made_again_are_refused(replays: Replays) -> None:
    """Another group's are seen behind the fence; the group's offset remembers the topic that held its own."""
    scene = ReplayScene(letter(5), letter(6))
    scene.replayed.read_to_end = lambda *_how: setattr(scene.replayed, "group", "other")
    with pytest.raises(Refused, match=r"is 'g', but .* were replayed under group 'other'"):
        replays(scene)
    again = ReplayScene(letter(5))
    again.broker.committed = Committed(6, "topic-id=id marks-id=older")
    with pytest.raises(Refused, match=r"replay log of dlq\[0\] is lost"):
        replays(again)
    assert scene.produced == again.produced == []


def marks(monkeypatch: pytest.MonkeyPatch, *logs: LogOffsets) -> tuple[ReplayLog, list[tuple[int, int]]]:
    left, read = list(logs), list[tuple[int, int]]()
    monkeypatch.setattr(dead_letter_reader, "log_offsets", lambda *_how: {0: left.pop(0) if len(left) > 1 else left[0]})

    def scan(_connection: object, _topic: str, ranges: dict[int, tuple[int, int]], isolation: str) -> Iterator[Any]:
        assert isolation == READ_COMMITTED, "a mark of an aborted replay is none"
        read.append(ranges[0])
        return iter(())

    monkeypatch.setattr(dead_letter_reader, "scan", scan)
    return ReplayLog(NOWHERE, "m", 0, "id"), read


def test_marks_are_settled_when_nothing_is_open_below_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Following takes what is visible at once; settling waits for the rest, and goes on where the reading stood."""
    log, read = marks(monkeypatch, LogOffsets(0, 3, 8), LogOffsets(0, 3, 8), LogOffsets(0, 7, 8), LogOffsets(0, 8, 8))
    log.follow(None, Deadline(5))
    assert read == [(0, 3)]
    log.read_to_end(None, Deadline(5))
    assert read == [(0, 3), (3, 8)]
    log, read = marks(monkeypatch, LogOffsets(2, 8, 8))
    log.read_to_end(None, Deadline(5))
    assert read == [(2, 8)]
    log, read = marks(monkeypatch, LogOffsets(0, 3, 8))
    with pytest.raises(Refused, match=r"m\[0\] has an open transaction of another group"):
        log.read_to_end(None, Deadline(0.01))
    monkeypatch.setattr(dead_letter_reader, "log_offsets", Mock(side_effect=DeadlineExceeded("no leader")))
    with pytest.raises(DeadlineExceeded, match="no leader"):  # no other replay runs, for which to wait
        log.read_to_end(None, Deadline(5))
    assert read == []


def test_an_entry_of_the_replay_log_counts_by_its_key_until_it_is_removed() -> None:
    """A value that no replay wrote was a stack trace, and a removed entry blocked all replays: under group 'None'."""
    values = [(3, b'{"group":"g"}'), (4, b"not json"), (5, b"[1]"), (6, b"{}"), (3, None)]
    log = ReplayLog(NOWHERE, "m", 0, "id")
    for offset, value in values:
        log._take(FakeRecord(0, replay_log_key("id", offset), value))
    log._take(FakeRecord(0, replay_log_key("older", 9), b'{"group":"other"}'))  # of a topic of the same name
    for word in ("\N{SUPERSCRIPT TWO}", "9" * 5000, ""):  # another program's: a digit, but no number of Python's
        log._take(FakeRecord(0, f"id/{word}".encode(), b'{"group":"other"}'))
    assert (log.offsets, log.group) == ({4, 5, 6}, "g")


def test_a_partition_that_does_not_exist_is_named_without_an_option_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dlq inspect` has no --partition, which the message named."""
    place = SimpleNamespace(dead_letter=SimpleNamespace(partitions=4))
    monkeypatch.setattr(command, "open_dead_letter_topics", lambda *_what: place)
    assert exit_code_of(cli, "brew", ["dlq", "inspect", "4/17", "--dead-letter", "d"]) == ExitCode.USAGE
    assert "there is no partition 4: d has partitions 0 to 3; run `brew dlq list`" in capsys.readouterr().err


def test_a_topic_whose_name_is_too_long_for_a_replay_log_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers refused the description of both; a replay, which needs the log, names the setting."""
    name, described = "d" * 241, list[list[str]]()
    monkeypatch.setattr(dead_letter_reader, "reach", lambda *_: None)
    monkeypatch.setattr(dead_letter_reader, "admin", lambda *_: None)
    topic = lambda _client, names, _deadline: described.append(names) or {names[0]: Topic(names[0], "id", 1, 1)}  # noqa: E731
    monkeypatch.setattr(dead_letter_reader.topics, "describe", topic)
    place = dead_letter_reader.open_dead_letter_topics(NOWHERE, name)
    assert (described, place.marks) == ([[name]], None)
    with pytest.raises(UsageError, match=r"DLQ_TOPIC \(--dead-letter\) with '.replayed'"):
        place.create_replay_log()
    dead_letter_reader.open_dead_letter_topics(NOWHERE, name[1:])
    assert described[1] == [name[1:], f"{name[1:]}.replayed"]


def test_a_list_reads_the_replay_log_of_those_partitions_alone_that_have_such_letters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It read all of them, which may be long, before it looked at a letter."""
    read: list[int] = []

    def replay_log(partition: int) -> SimpleNamespace:
        read.append(partition)
        return SimpleNamespace(offsets={5})

    there = [LETTER, replace(LETTER, offset=6), replace(FOREIGN, partition=1), replace(LETTER, partition=2)]
    place = SimpleNamespace(
        partitions=lambda _chosen: list(range(50)), letters=lambda *_what: iter([there]), replay_log=replay_log
    )
    monkeypatch.setattr(command, "open_dead_letter_topics", lambda *_what: place)
    assert exit_code_of(cli, "brew", ["dlq", "list", "--reason", "not-json", "--json"]) == ExitCode.DONE
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["partition"], row["letters"], row["replayed"]) for row in rows] == [(0, 2, 1), (2, 1, 1)]
    assert read == [0, 2]
