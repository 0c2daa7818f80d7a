"""`dlq`: list, show, edit and replay dead letters."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from brew import names
from brew.cli import (
    UnfinishedError,
    as_bytes,
    bootstrap_option,
    checked_group,
    connection,
    flag,
    named_option,
    options,
    plain_option,
    printable,
    repeatable,
    typed_option,
)
from brew.deadline import Deadline
from brew.errors import BrewError, Refused, UsageError
from brew.kafka import topics
from brew.kafka.clients import BATCH_BYTES
from brew.kafka.transaction import TransactionSettings
from brew.names import CrashPoint, checked_topic, quantity
from brew.offsets import SourcePosition
from brew.records import REPLAY_GROUP
from operations.dlq.dead_letter_reader import (
    ASK_S,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterTopics,
    open_dead_letter_topics,
    printable_content,
)
from operations.dlq.replay import (
    CRASH_POINTS,
    RepairCommand,
    Replayed,
    ReplayRules,
    ReplaySettings,
    SkippedDeadLetter,
    replay,
    written_back,
)
from operations.labels import NONE, record_time, utc
from operations.options import advised, json_option, print_json

_MOST_SHOWN = 2000
_PERIODS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00Z", "minute": "%Y-%m-%dT%H:%MZ"}
PERIODS = ("none", *_PERIODS)
_NO_PERIOD = "unknown"
_MOST_LINES = 100


def counts_document(topic: str, letters: Iterable[tuple[DeadLetter, bool]], period: str = "none") -> dict[str, Any]:
    """
    Count dead letters by reason, partition, and period of the input record's timestamp (`none`: no periods).

    ``letters``: each with whether it was replayed.
    """
    counts: defaultdict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    times: dict[tuple[str, int, str], tuple[int, int]] = {}
    for letter, replayed in letters:
        place = (letter.reason, letter.partition, _period(letter.timestamp, period))
        counts[place].update(letters=1, replayed=int(replayed), waiting=int(not replayed))
        if record_time(letter.timestamp) is not None:
            oldest, newest = times.get(place, (letter.timestamp, letter.timestamp))
            times[place] = min(oldest, letter.timestamp), max(newest, letter.timestamp)
    rows: list[dict[str, Any]] = []
    for place, count in sorted(counts.items()):
        reason, partition, when = place
        first, last = map(record_time, times.get(place, (-1, -1)))
        timed = {"time": when} if when else {}
        rows.append({"reason": reason, "partition": partition, **timed, **count, "oldest": first, "newest": last})
    totals = {name: sum(row[name] for row in rows) for name in ("letters", "replayed", "waiting")}
    return {"topic": topic, **totals, "rows": rows}


def _period(timestamp: int, period: str) -> str:
    if (form := _PERIODS.get(period)) is None:
        return ""
    moment = None if record_time(timestamp) is None else utc(timestamp)
    return _NO_PERIOD if moment is None else moment.strftime(form)


def counts_table(document: dict[str, Any]) -> Table:
    timed = any("time" in row for row in document["rows"])
    names = ["reason", "partition", *(["time"] if timed else []), "letters", "replayed", "waiting", "oldest", "newest"]
    table = Table(title=Text(document["topic"]), show_footer=True)
    for name in names:
        number = name in {"partition", "letters", "replayed", "waiting"}
        footer = f"{document[name]:,}" if name in document and number else ""
        table.add_column(name, Text(footer), justify="right" if number else "left", overflow="fold")
    for row in document["rows"]:
        table.add_row(*(_cell(row[name]) for name in names))
    return table


def _cell(content: int | str | None) -> Text:
    return Text(f"{content:,}" if isinstance(content, int) else NONE if content is None else printable(content))


def letter_document(letter: DeadLetter, *, replayed: bool) -> dict[str, Any]:
    """Return a dead letter as JSON; bytes as `{"text": ...}` or `{"hex": ...}`, what only the input has as None."""
    source = letter.source
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "source": None if source is None else f"{source.topic}/{source.partition}/{source.offset}",
        "reason": letter.reason,
        "message": letter.message,
        "timestamp": record_time(letter.timestamp),
        "replayed": replayed,
        "replays_before": None if letter.headers_omitted else letter.replays,
        "key": printable_content(letter.key),
        "headers": [[name, printable_content(content)] for name, content in letter.headers],
        "value_omitted": letter.omitted,
        "headers_omitted": letter.headers_omitted,
        "value": printable_content(letter.value),
    }


def letter_table(document: dict[str, Any]) -> Group:
    """Return the document for a terminal: without control characters, long values truncated."""
    table = Table(show_header=False)
    for name, content in document.items():
        if name in {"headers", "value"}:
            continue
        unset = "unknown: its own headers are only on the input" if name == "replays_before" else NONE
        cell = _plain(unset if content is None else content)
        table.add_row(Text(name), _harmless(content) if name == "key" else cell)
    headers = Table("header", "value", title="headers")
    for name, content in document["headers"]:
        headers.add_row(_plain(name), _harmless(content))
    value = Text("(only on the input)", "dim") if document["value_omitted"] else _harmless(document["value"])
    return Group(table, headers, Text("value:"), value)


def report_document(done: Sequence[Replayed], dead_letter: str, target: str, *, dry_run: bool) -> dict[str, Any]:
    records, skipped = written_back(done), [each for each in done if isinstance(each, SkippedDeadLetter)]

    def place(letter: DeadLetter) -> dict[str, Any]:
        return {"partition": letter.partition, "offset": letter.offset}

    return {
        "dead_letter": dead_letter,
        "input": target,
        "dry_run": dry_run,
        "replayed": len(records),
        "stays": dict(sorted(Counter(each.why.value for each in skipped).items())),
        "letters": [
            place(record.letter) | {"to": record.partition, "count": record.letter.replays + 1} for record in records
        ],
        "stayed": [place(kept.letter) | {"why": kept.why.value, "message": kept.message} for kept in skipped],
    }


def print_skipped(console: Console, done: Iterable[Replayed]) -> None:
    """Print a line for each letter skipped now but not replayed before; at most a hundred per transaction."""
    stays = [item for item in done if isinstance(item, SkippedDeadLetter) and item.message]
    for stay in stays[:_MOST_LINES]:
        place = f"{stay.letter.partition}/{stay.letter.offset}"
        console.print(_plain(f"{place} not replayed, {stay.why.value}: {stay.message}"), soft_wrap=True)
    if len(stays) > _MOST_LINES:
        console.print(Text(f"... and {len(stays) - _MOST_LINES:,} more; --json lists all"))


def summary(document: dict[str, Any]) -> str:
    verb = "would be written back" if document["dry_run"] else "written back"
    stays = ", ".join(f"{count:,} {why}" for why, count in document["stays"].items())
    left = f"; {sum(document['stays'].values()):,} not replayed: {stays}" if stays else ""
    return f"{quantity(document['replayed'], 'dead letter', ',')} {verb} to {document['input']}{left}"


def _plain(content: object) -> Text:
    return Text(printable(str(content), "\n\t"))


def _harmless(content: dict[str, str] | None) -> Text:
    if content is None:
        return Text("(null)", style="dim")
    [(kind, text)] = content.items()
    cut = text[:_MOST_SHOWN]
    more = f" ... {len(text) - _MOST_SHOWN:,} more characters; --json shows all" if len(text) > _MOST_SHOWN else ""
    return Text(("hex " if kind == "hex" else "") + cut + more)


_WIDE, _LONGEST_GROUP = 240, 200


_place = options(
    bootstrap_option, named_option("--dead-letter", "DLQ_TOPIC", names.DEAD_LETTER_TOPIC, "Dead-letter topic.")
)
_chosen = options(
    repeatable(
        "--partition partitions", "Only this partition of the dead-letter topic; repeatable.", type=click.IntRange(0)
    ),
    repeatable("--reason reasons", "Only this reason; repeatable.", "REASON"),
    repeatable("--key keys", "Only records with this key; repeatable.", "TEXT"),
    plain_option(
        "--offsets", "Only FROM <= offset < UNTIL of the dead-letter topic; either may be left out.", "FROM:UNTIL"
    ),
)


@click.group("dlq")
def dlq() -> None:
    """
    Count dead letters, show one, or replay them: write them back to the input topic, each at most once.

    Examples:
      python -m pipeline dlq list                              count them by reason
      python -m pipeline dlq inspect 0/17                      show one
      python -m pipeline dlq replay --reason not-json --dry-run

    Exit codes: 0 done, 3 refused, 64 wrong usage.
    """


@dlq.command("list")
@_place
@_chosen
@plain_option("--input topic", "Only dead letters of this input topic.", "TOPIC")
@typed_option("--per", click.Choice(PERIODS), "none", "Also count by period of the input record's timestamp.")
@json_option
@advised()
def list_command(
    bootstrap: str, dead_letter: str, per: str, topic: str | None, *, as_json: bool, **chosen: Any
) -> None:
    """
    Count dead letters by reason and partition; with --per, also by time.

    Examples:
      python -m pipeline dlq list
      python -m pipeline dlq list --reason not-json --per hour --json
    """
    choice = replace(_choice(**chosen), topic=None if topic is None else checked_topic(topic, "--input"))
    place = open_dead_letter_topics(connection(bootstrap), dead_letter)

    @cache  # only of partitions that have such letters: a replay log may be long
    def replayed(partition: int) -> set[int]:
        return place.replay_log(partition).offsets

    letters = place.letters(place.partitions(choice.partitions), choice.start, choice.until)
    wanted = filter(choice.matches, chain.from_iterable(letters))
    counted = ((letter, letter.offset in replayed(letter.partition)) for letter in wanted)
    _show(counts_document(dead_letter, counted, per), counts_table, as_json=as_json)


@dlq.command("inspect")
@_place
@named_option("--input", "INPUT_TOPIC", names.INPUT_TOPIC, "Input topic, for --source.")
@click.argument("position", metavar="[PARTITION/OFFSET]", required=False)
@plain_option("--source", "Partition and offset of the rejected record on the input topic.", "PARTITION/OFFSET")
@json_option
@advised()
def inspect_command(
    bootstrap: str, dead_letter: str, position: str | None, source: str | None, *, as_json: bool, **more: Any
) -> None:
    """
    Show one dead letter with its reason, headers and value; bytes that are not text as hex.

    Examples:
      python -m pipeline dlq inspect 2/17
      python -m pipeline dlq inspect --source 2/10441 --json
    """
    if (position is None) is (source is None):
        which = "either PARTITION/OFFSET of the dead-letter topic, or --source PARTITION/OFFSET"
        raise UsageError(f"give one dead letter: {which}")
    partition, offset = _pair(position or source or "")
    place = open_dead_letter_topics(connection(bootstrap), dead_letter)
    letters: Iterator[DeadLetter]
    if source is None:
        where = f"at {dead_letter}/{position}"
        if partition >= place.dead_letter.partitions:
            raise UsageError(
                f"there is no partition {partition}: {dead_letter} has partitions 0 to "
                f"{place.dead_letter.partitions - 1}; run `brew dlq list` to count its dead letters"
            )
        letters = chain.from_iterable(place.letters([partition], offset, offset + 1))
    else:
        where = f"of {more['input']}/{source}"
        wanted = SourcePosition(more["input"], partition, offset)
        everything = chain.from_iterable(place.letters(place.partitions(())))
        letters = (letter for letter in everything if letter.source == wanted)
    if (letter := next(letters, None)) is None:
        raise Refused(f"there is no visible dead letter {where}; run `brew dlq list` to count those that exist")
    marks = place.replay_log(letter.partition).offsets
    _show(letter_document(letter, replayed=letter.offset in marks), letter_table, as_json=as_json)


@dlq.command("replay")
@_place
@named_option("--input", "INPUT_TOPIC", names.INPUT_TOPIC, "Input topic to write records back to.")
@named_option(
    "--group",
    "GROUP_ID",
    names.GROUP_ID,
    "The pipeline's consumer group; a replay uses GROUP.dlq-replay.",
    callback=checked_group,
)
@_chosen
@plain_option(
    "--edit", "Command that repairs a value, from stdin to stdout; if it fails, the record is not replayed.", "COMMAND"
)
@typed_option("--edit-timeout", click.FloatRange(0, min_open=True), 10.0, "Timeout of --edit for one record.")
@flag("--by-key", "Choose the partition by key, instead of the original one.")
@typed_option("--most-replays", click.IntRange(0), 3, "Maximum number of replays of a record.")
@typed_option(
    "--transaction-timeout", click.FloatRange(1, 900), 60.0, "Time after which brokers abort an open transaction."
)
@flag("--dry-run", "Show what would be replayed, and write nothing.")
@plain_option(
    "--crash-point",
    "Kill the process at this step, for tests.",
    type=click.Choice([crash_point.value for crash_point in CRASH_POINTS]),
)
@json_option
@advised()
def replay_command(bootstrap: str, dead_letter: str, *, as_json: bool, **option: Any) -> None:
    """
    Write dead letters back to the input topic, each at most once, even if it is killed and run again.

    A record is appended to the partition that it came from, with headers that name its dead letter.

    Examples:
      python -m pipeline dlq replay --dry-run
      python -m pipeline dlq replay --reason too-large
      python -m pipeline dlq replay --key gold-000016 --edit 'jq -c .order'
      python -m pipeline dlq replay --partition 2 --offsets 100:200 --most-replays 1
    """
    target = checked_topic(option["input"], "INPUT_TOPIC (--input)")
    edit = None if option["edit"] is None else RepairCommand.parse(option["edit"], option["edit_timeout"])
    choice = _choice(**{name: option[name] for name in ("partitions", "reasons", "keys", "offsets")})
    if not 1 <= (length := len(option["group"])) <= _LONGEST_GROUP:
        raise UsageError(f"GROUP_ID (--group) has {length} characters; set one of 1 to {_LONGEST_GROUP} characters")
    place = open_dead_letter_topics(connection(bootstrap), dead_letter)
    settings = _settings(place, target, choice, edit, option)
    done: list[Replayed] = []
    console = Console(stderr=True)
    status = console.status("replaying") if console.is_terminal else contextlib.nullcontext()
    with status, _interruption(done, target, dry_run=settings.dry_run):
        for some in replay(place, settings):
            print_skipped(console, some)
            done += some
    document = report_document(done, dead_letter, target, dry_run=settings.dry_run)
    print_json(document) if as_json else click.echo(summary(document))


@contextlib.contextmanager
def _interruption(done: Sequence[Replayed], target: str, *, dry_run: bool) -> Iterator[None]:
    """Add to an error, or print at a signal, how many dead letters were written back before it."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:  # rich exits if the reader of stderr is gone
        raise UnfinishedError(
            "stopped before the end, because the reader of its output is gone; run the same command again: it skips "
            "what was written back"
        ) from error
    except BaseException as error:
        if dry_run or not (records := written_back(done)):
            raise
        # "At least": a commit without an answer may have been applied, too.
        known = f"at least {quantity(len(records), 'dead letter', ',')} written back to {target} before this"
        text = f"{known} (run the same command again: it skips them)"
        if isinstance(error, BrewError):
            raise type(error)(f"{text}: {error}") from error
        click.echo(text, err=True)
        raise


def _settings(
    place: DeadLetterTopics, target: str, choice: DeadLetterFilter, edit: RepairCommand | None, option: dict[str, Any]
) -> ReplaySettings:
    deadline = Deadline(ASK_S)
    described = topics.describe_one(place.admin, target, deadline)
    max_bytes = topics.max_message_bytes(place.admin, target, deadline)
    batch = min(BATCH_BYTES, max_bytes)
    if option["dry_run"]:
        place.check_cleanup_policy()  # of a replay log that exists; a dry run creates none
    else:
        batch = min(batch, topics.max_message_bytes(place.admin, place.create_replay_log().name, deadline))
    return ReplaySettings(
        option["group"],
        TransactionSettings(place.connection, option["group"] + REPLAY_GROUP, option["transaction_timeout"], batch),
        ReplayRules(target, described.partitions, max_bytes, option["most_replays"], by_key=option["by_key"]),
        choice,
        edit,
        dry_run=option["dry_run"],
        crash=None if option["crash_point"] is None else CrashPoint(option["crash_point"]),
    )


def _choice(
    partitions: Sequence[int], reasons: Sequence[str], keys: Sequence[str], offsets: str | None
) -> DeadLetterFilter:
    if (span := re.fullmatch("([0-9]*):([0-9]*)", offsets or ":")) is None:
        raise UsageError(f"--offsets is {offsets!r}: write FROM:UNTIL, such as 100:200, 100: or :200")
    start, until = int(span[1] or 0), int(span[2]) if span[2] else None
    if until is not None and until <= start:
        raise UsageError(f"--offsets is {offsets!r}: UNTIL is exclusive and has to be above FROM")
    return DeadLetterFilter(tuple(partitions), tuple(reasons), tuple(map(as_bytes, keys)), start, until)


def _pair(text: str) -> tuple[int, int]:
    if (pair := re.fullmatch("([0-9]+)/([0-9]+)", text)) is None:
        raise UsageError(f"{text!r} is not a partition and an offset; write PARTITION/OFFSET, such as 2/17")
    return int(pair[1]), int(pair[2])


def _show(document: dict[str, Any], drawn: Callable[[dict[str, Any]], RenderableType], *, as_json: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    print_json(document) if as_json else console.print(drawn(document))
