"""Dead letters, where they came from, and the log of those that have been replayed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import orjson

from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import DeadlineExceeded, Refused, Retriable, UsageError
from brew.kafka import topics
from brew.kafka.clients import AdminClient, admin, reach
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import log_offsets
from brew.kafka.topic_reader import readable_headers
from brew.kafka.topics import Topic, TopicSpec
from brew.names import READ_COMMITTED, checked_topic, quantity
from brew.offsets import Headers, SourcePosition
from brew.records import (
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_OMITTED,
    ERROR_OMITTED_HEADERS,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
    MARKS_TOPIC,
    REPLAYED_COUNT,
)
from operations.options import chosen_partitions

_FETCHED_HEADERS_BYTES = 1024 * 1024  # a letter has only their number; Kafka's default limit of a record
_MOST_DIGITS = 9  # Python refuses thousands, which another program may write
_OFFSET = re.compile(r"[0-9]{1,19}")
_ERROR_POSITION = (ERROR_TOPIC, ERROR_PARTITION, ERROR_OFFSET)
NO_REASON = b"unknown"
"""The reason shown for a record that no pipeline wrote."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of the dead-letter topic; ``timestamp`` is the input record's, in ms since the epoch."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int

    @classmethod
    def of(cls, record: LogRecord) -> Self:
        place = (record.partition(), record.offset())
        return cls(*place, record.key(), record.value(), readable_headers(record), record.timestamp()[1])

    def _last(self, name: str, default: bytes = b"") -> str:
        return (dict(self.headers).get(name) or default).decode("utf-8", "replace")

    @property
    def reason(self) -> str:
        return self._last(ERROR_REASON, NO_REASON)

    @property
    def message(self) -> str:
        return self._last(ERROR_MESSAGE)

    @property
    def source(self) -> SourcePosition | None:
        """The record's position on the input; None if no pipeline wrote this dead letter."""
        return None if dict(self.headers).get(ERROR_REASON) is None else SourcePosition.of(self.headers)

    @property
    def output(self) -> str | None:
        """The position of the failed record if it is an output of the source, as with `brew call`; else None."""
        source, errors = self.source, dict(self.error_headers)
        if source is None or errors.get(ERROR_TOPIC) is None:
            return None
        read = [(errors.get(name) or b"").decode("utf-8", "replace") for name in _ERROR_POSITION]
        return None if read == [source.topic, str(source.partition), str(source.offset)] else "/".join(read)

    @property
    def own_headers(self) -> list[tuple[str, bytes | None]]:
        """The input record's own headers: those before the last block of error and source headers."""
        starts = [index for index, (name, _) in enumerate(self.headers) if name == ERROR_REASON]
        return list(self.headers[: starts[-1]] if starts else self.headers)

    @property
    def omitted(self) -> bool:
        """True if the value was too large for a dead letter and exists only on the input."""
        return ERROR_OMITTED in dict(self.error_headers)

    @property
    def headers_omitted(self) -> bool:
        """True if the record's own headers were too large for a dead letter and exist only on the input."""
        return ERROR_OMITTED_HEADERS in dict(self.error_headers)

    @property
    def error_headers(self) -> list[tuple[str, bytes | None]]:
        """The last block of error and source headers."""
        return list(self.headers[len(self.own_headers) :])

    def is_letter_of(self, value: bytes | None, headers: Headers) -> bool:
        """Return whether a record has the value and headers that this letter kept, and the size of those omitted."""
        errors = dict(self.error_headers)
        value_size, count = (errors.get(name) for name in (ERROR_OMITTED, ERROR_OMITTED_HEADERS))
        same_value = value is not None and value_size == b"%d" % len(value) if self.omitted else value == self.value
        same_headers = count == b"%d" % len(headers) if self.headers_omitted else list(headers) == self.own_headers
        return same_value and same_headers

    @property
    def replays(self) -> int:
        """How often the record had been replayed before it was rejected this time."""
        return _number(dict(self.own_headers).get(REPLAYED_COUNT))

    @property
    def size(self) -> int:
        """Size of key, value and headers in bytes, with those that a replay fetches from the input."""
        fetched = _number(dict(self.error_headers).get(ERROR_OMITTED)) + self.headers_omitted * _FETCHED_HEADERS_BYTES
        return record_size(self.key, self.value, self.headers) + fetched


def _number(digits: bytes | None) -> int:
    return int(digits) if digits is not None and digits.isdigit() and len(digits) <= _MOST_DIGITS else 0


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(text or b"") for name, text in headers)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters to select: those that match every field that is set; with none set, all."""

    partitions: Sequence[int] = ()
    reasons: Sequence[str] = ()
    keys: Sequence[bytes] = ()
    start: int = 0
    until: int | None = None
    topic: str | None = None
    """The input topic of the dead letters."""

    def matches(self, letter: DeadLetter) -> bool:
        return (
            (not self.partitions or letter.partition in self.partitions)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.keys or letter.key in self.keys)
            and (self.topic is None or (letter.source is not None and letter.source.topic == self.topic))
            and self.start <= letter.offset
            and (self.until is None or letter.offset < self.until)
        )


def printable_content(content: bytes | None) -> dict[str, str] | None:
    """Return bytes for display and JSON: `{"text": ...}` if every character is printable, else `{"hex": ...}`."""
    if content is None:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        text = content.decode()
        if all(character.isprintable() or character in "\n\t" for character in text):
            return {"text": text}
    return {"hex": content.hex()}


_READ_TO_END_S = 10.0


class _OpenTransaction(Retriable):
    """A transaction is open on the replay log."""


def replay_log_key(topic_id: str, offset: int) -> bytes:
    """Return the key, which includes the topic id: a recreated topic has different dead letters at the same offsets."""
    return f"{topic_id}/{offset}".encode()


def _group_in(content: bytes) -> str | None:
    """Return the group of an entry's value; None if another program wrote it: its key counts nevertheless."""
    try:
        entry = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    group = entry.get("group") if isinstance(entry, dict) else None
    return group if isinstance(group, str) else None


@dataclass
class ReplayLog:
    """The replay log of one dead-letter partition, as far as it was read; ``group`` is the group that wrote it."""

    connection: Connection
    topic: str
    partition: int
    dead_letter_id: str
    offsets: set[int] = field(default_factory=set)
    group: str | None = None
    _next: int = 0

    def follow(self, client: AdminClient, deadline: Deadline) -> None:
        log = log_offsets(client, self.topic, [self.partition], deadline)[self.partition]
        self._read(max(self._next, log.first), log.last_stable)

    def read_to_end(self, client: AdminClient, deadline: Deadline) -> None:
        """Read up to the log's end, after a fence; `Refused` if a transaction of another group is open on it."""

        def ask() -> tuple[int, int]:
            log = log_offsets(client, self.topic, [self.partition], deadline)[self.partition]
            if log.last_stable < log.end:
                raise _OpenTransaction(f"a transaction is open at offset {log.last_stable}")
            return log.first, log.end

        try:
            first, end = retry_until(ask, "marks", deadline.part(_READ_TO_END_S))
        except DeadlineExceeded as error:
            if not isinstance(error.__cause__, _OpenTransaction):  # the brokers did not answer
                raise
            raise Refused(
                f"{self.topic}[{self.partition}] has an open transaction of another group: another replay runs with a "
                "different --group; wait until it has ended, then run this one again"
            ) from error
        self._read(max(self._next, first), end)

    def _read(self, start: int, until: int) -> None:
        for batch in scan(self.connection, self.topic, {self.partition: (start, until)}, READ_COMMITTED):
            for record in batch:
                self._take(record)
        self._next = max(self._next, until)

    def _take(self, record: LogRecord) -> None:
        topic_id, _, offset = (record.key() or b"").decode("utf-8", "replace").rpartition("/")
        if topic_id != self.dead_letter_id or not _OFFSET.fullmatch(offset):
            return
        content = record.value()
        if content is None:  # compaction will remove the entry, so it counts as removed now
            self.offsets.discard(int(offset))
            return
        self.offsets.add(int(offset))
        self.group = _group_in(content) or self.group


ASK_S = 30.0
_REACH_S = 10.0


@dataclass
class DeadLetterTopics:
    """The dead-letter topic and its replay log topic (None: nothing was ever replayed); not thread-safe."""

    connection: Connection
    admin: AdminClient
    dead_letter: Topic
    marks: Topic | None
    _read: dict[int, ReplayLog] = field(default_factory=dict)
    _policy_checked: bool = False

    def partitions(self, chosen: Sequence[int]) -> list[int]:
        return chosen_partitions(chosen, self.dead_letter.name, self.dead_letter.partitions)

    def letters(
        self, partitions: Sequence[int], start: int = 0, until: int | None = None
    ) -> Iterator[list[DeadLetter]]:
        """Yield the visible dead letters of some partitions in batches, in order within each partition."""
        name = self.dead_letter.name
        logs = log_offsets(self.admin, name, partitions, Deadline(ASK_S))
        ends = {p: log.last_stable if until is None else min(until, log.last_stable) for p, log in logs.items()}
        spans = {p: (max(start, log.first), ends[p]) for p, log in logs.items()}
        for batch in scan(self.connection, name, spans, READ_COMMITTED):
            yield [DeadLetter.of(record) for record in batch]

    def replay_log(self, partition: int) -> ReplayLog:
        """Return a partition's replay log, read to its present end; cached, and empty before the first replay."""
        new = ReplayLog(self.connection, self.dead_letter.name + MARKS_TOPIC, partition, self.dead_letter.topic_id)
        log = self._read.setdefault(partition, new)
        if self.marks is not None and partition < self.marks.partitions:
            log.follow(self.admin, Deadline(ASK_S))
        return log

    def whole(self, letter: DeadLetter) -> DeadLetter:
        """Return a letter with the value and headers to which it refers; `LookupError` if the input lost them."""
        if not letter.omitted and not letter.headers_omitted:
            return letter
        value, headers = self._original(letter)
        return replace(letter, value=value, headers=[*headers, *letter.error_headers])

    def _original(self, letter: DeadLetter) -> tuple[bytes | None, Headers]:
        if (source := letter.source) is None:
            raise LookupError("it has no source position")
        log = log_offsets(self.admin, source.topic, [source.partition], Deadline(ASK_S))[source.partition]
        if log.first <= source.offset < log.last_stable:
            span = {source.partition: (source.offset, source.offset + 1)}
            for batch in scan(self.connection, source.topic, span, READ_COMMITTED):
                # A recreated input has other records at the same offsets, maybe with the same key.
                value, headers = batch[0].value(), readable_headers(batch[0])
                if batch[0].key() == letter.key and letter.is_letter_of(value, headers):
                    return value, headers
        raise LookupError(f"{source.topic}/{source.partition}/{source.offset} no longer holds the record")

    def create_replay_log(self) -> Topic:
        """Return the replay log topic, created if missing; `Refused` if it has too few partitions or loses entries."""
        if self.marks is None:
            wanted = TopicSpec(
                checked_topic(self.dead_letter.name + MARKS_TOPIC, "DLQ_TOPIC (--dead-letter) with '.replayed'"),
                self.dead_letter.partitions,
                {topics.CLEANUP_POLICY: "compact"},
            )
            deadline = Deadline(ASK_S)
            try:
                topics.create(self.admin, [wanted], deadline)
            except Refused as error:
                by_hand = f"{quantity(wanted.partitions, 'partition')} and {topics.CLEANUP_POLICY}=compact"
                raise type(error)(f"{error}; made by hand, it needs {by_hand}") from error
            self.marks = topics.describe_all(self.admin, [wanted.name], deadline)[wanted.name]
        if self.marks.partitions < self.dead_letter.partitions:
            raise Refused(
                f"{self.marks.name} has {quantity(self.marks.partitions, 'partition')}, {self.dead_letter.name} has "
                f"{self.dead_letter.partitions}; add partitions to {self.marks.name} (`kafka-topics --alter --topic "
                f"{self.marks.name} --partitions {self.dead_letter.partitions}`)"
            )
        self.check_cleanup_policy()
        return self.marks

    def check_cleanup_policy(self) -> None:
        """Refuse a replay log that retention deletes from: a letter without an entry is replayed. Asks once."""
        if self.marks is None or self._policy_checked:
            return
        name = self.marks.name
        policy = topics.cleanup_policy(self.admin, name, Deadline(ASK_S))
        if "delete" in policy.split(","):
            raise Refused(
                f"the replay log {name} has cleanup.policy {policy}: once retention has deleted its entries, their "
                "dead letters would be replayed again; set it to compact (`kafka-configs --alter --topic "
                f"{name} --add-config cleanup.policy=compact`), and leave out with --offsets what was replayed before "
                "the entries that it still has"
            )
        self._policy_checked = True


def open_dead_letter_topics(connection: Connection, dead_letter: str) -> DeadLetterTopics:
    """Return the topics as the cluster describes them; `Refused` if there is no such topic, or no broker."""
    checked_topic(dead_letter, "DLQ_TOPIC (--dead-letter)")
    reach(connection, Deadline(_REACH_S))
    client = admin(connection)
    marks = dead_letter + MARKS_TOPIC
    wanted = [dead_letter]
    with contextlib.suppress(UsageError):  # brokers refuse a name that is too long; such a topic has no replay log
        wanted.append(checked_topic(marks, ""))
    described = topics.describe(client, wanted, Deadline(ASK_S))
    if dead_letter not in described:
        raise Refused(
            f"dead-letter topic {dead_letter!r} does not exist on {connection.bootstrap}; set DLQ_TOPIC "
            "(--dead-letter) to one that does"
        )
    return DeadLetterTopics(connection, client, described[dead_letter], described.get(marks))
