"""Replay dead letters to the input, each at most once."""

from __future__ import annotations

import contextlib
import enum
import os
import shlex
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from selectors import EVENT_READ, DefaultSelector
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from typing import IO, Self, cast

import orjson

from brew.deadline import Deadline
from brew.errors import Fenced, Refused, UsageError
from brew.fault_injection import die
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import CrashPoint, quantity
from brew.offsets import Committed
from brew.records import REPLAYED_COUNT, REPLAYED_FROM, REPLAYED_TIMESTAMP
from brew.transaction import Write, queue, transact
from operations.dlq.dead_letter_reader import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterTopics,
    record_size,
    replay_log_key,
)

BY_KEY = -1
"""As a partition: leaves the choice to the key's murmur2 hash."""

_REPLAY_HEADERS = {REPLAYED_FROM, REPLAYED_COUNT, REPLAYED_TIMESTAMP}
_ROOM, _ROOM_PER_HEADER = 512, 10


class SkipReason(enum.StrEnum):
    FOREIGN = "foreign"
    REPLAYED = "replayed-before"
    TOO_OFTEN = "too-often"
    NO_PARTITION = "no-partition"
    BYTES_GONE = "bytes-gone"
    EDIT_FAILED = "edit-failed"
    TOO_LARGE = "too-large"


@dataclass(frozen=True, slots=True)
class SkippedDeadLetter:
    letter: DeadLetter
    why: SkipReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    letter: DeadLetter
    partition: int
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


Replayed = ReplayRecord | SkippedDeadLetter
"""The result for one dead letter."""


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """Where records are written back, of what size, and how often; ``by_key``: the key chooses the partition."""

    input: str
    partitions: int
    max_bytes: int
    most_replays: int
    by_key: bool = False

    def skipped(self, letter: DeadLetter) -> SkippedDeadLetter | None:
        """Return the reason to skip a dead letter, as far as it can be decided without its value; else None."""
        if (source := letter.source) is None:
            kind, why = SkipReason.FOREIGN, "it has no error and source headers: it was not written by a pipeline"
        elif (output := letter.output) is not None:
            # The source was processed already: written back, the output would be processed as one more input.
            kind = SkipReason.FOREIGN
            why = (
                f"its record is {output}, an output of {source}, and not of the input; to send it again, let "
                "`brew call --topic` read this dead-letter topic, with another --group and --dead-letter"
            )
        elif source.topic != self.input:
            kind = SkipReason.FOREIGN
            why = f"it came from {source.topic}, not from {self.input}; set --input to {source.topic}"
        elif letter.replays >= self.most_replays:
            kind = SkipReason.TOO_OFTEN
            why = f"it was replayed {quantity(letter.replays, 'time')}; --most-replays is {self.most_replays}, raise it"
        elif source.partition >= self.partitions and (letter.omitted or letter.headers_omitted):
            kind, there = SkipReason.BYTES_GONE, quantity(self.partitions, "partition")
            why = f"what it omits is in partition {source.partition}, and {source.topic} has {there}"
        elif source.partition >= self.partitions and not self.by_key:
            kind, there = SkipReason.NO_PARTITION, quantity(self.partitions, "partition")
            why = f"it came from partition {source.partition}, and {source.topic} has {there}; set --by-key"
        else:
            return None
        return SkippedDeadLetter(letter, kind, why)

    def replay_record(self, dead_letter: str, letter: DeadLetter, value: bytes | None) -> Replayed:
        """Return the record to write for a letter that is not `skipped`; ``value`` may have been repaired."""
        headers = [(name, text) for name, text in letter.own_headers if name not in _REPLAY_HEADERS]
        headers += [
            (REPLAYED_FROM, f"{dead_letter}/{letter.partition}/{letter.offset}".encode()),
            (REPLAYED_COUNT, b"%d" % (letter.replays + 1)),
            (REPLAYED_TIMESTAMP, b"%d" % letter.timestamp),
        ]
        # A record that the broker refuses would make its whole transaction fail on every retry.
        size = record_size(letter.key, value, headers) + _ROOM + _ROOM_PER_HEADER * len(headers)
        if size > self.max_bytes:
            why = f"it has about {size} bytes, and max.message.bytes of {self.input} is {self.max_bytes}; raise it"
            return SkippedDeadLetter(letter, SkipReason.TOO_LARGE, why)
        source = letter.source
        partition = BY_KEY if self.by_key or source is None else source.partition
        return ReplayRecord(letter, partition, value, headers)


_MAX_ERROR_LENGTH, _PIECE_BYTES, _MOST_EDITED_BYTES = 200, 64 * 1024, 64 * 1024 * 1024


class RepairFailed(Exception):
    """The command exited with a non-zero status, or did not finish in time."""


@dataclass(frozen=True, slots=True)
class RepairCommand:
    """The command's words (run without a shell), and its timeout per record in seconds."""

    command: tuple[str, ...]
    timeout_s: float

    @classmethod
    def parse(cls, text: str, timeout_s: float) -> Self:
        """Split ``text`` as a shell would; `UsageError` if a quote is not closed, or there is no word."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--edit is {text!r}: {error}; write the command as in a shell") from error
        if not words:
            raise UsageError("--edit is empty: give a command that reads a value and writes the repaired one")
        return cls(tuple(words), timeout_s)

    def __call__(self, value: bytes | None) -> bytes:
        """Return the repaired value; raise `RepairFailed`, or `UsageError` if the command can't be started."""
        with TemporaryFile() as given:
            given.write(value or b"")
            given.seek(0)
            try:
                child = Popen(self.command, stdin=given, stdout=PIPE, stderr=PIPE, start_new_session=True)
            except OSError as error:
                wrong = f"--edit can't start {self.command[0]!r}: {error.strerror}"
                raise UsageError(f"{wrong}; name an executable program") from error
        with child:
            try:
                edited, complaint = self._written(child, Deadline(self.timeout_s))
            except BaseException:
                os.killpg(child.pid, signal.SIGKILL)
                raise
        if child.returncode:
            said = complaint.decode("utf-8", "replace").strip()[-_MAX_ERROR_LENGTH:]
            raise RepairFailed(f"--edit exited with {child.returncode}" + (f": {said}" if said else ""))
        return edited

    def _written(self, child: Popen[bytes], deadline: Deadline) -> tuple[bytes, bytes]:
        """Return all of stdout and the end of stderr once the command has ended; memory is bounded, not only time."""
        edited, complaint = bytearray(), bytearray()
        too_long = f"--edit took longer than {self.timeout_s:g} s; raise --edit-timeout"
        with DefaultSelector() as streams:
            for stream, content in ((child.stdout, edited), (child.stderr, complaint)):
                streams.register(cast("IO[bytes]", stream), EVENT_READ, content)
            while streams.get_map():
                ready = streams.select(deadline.remaining_s())
                if deadline.expired():
                    raise RepairFailed(too_long)
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE_BYTES)
                    key.data.extend(piece)
                    if not piece:
                        streams.unregister(key.fileobj)
                del complaint[:-_PIECE_BYTES]
                if len(edited) > _MOST_EDITED_BYTES:
                    raise RepairFailed(f"--edit wrote more than {_MOST_EDITED_BYTES:,} bytes; let it write one value")
        try:
            child.wait(deadline.remaining_s())
        except TimeoutExpired as error:
            raise RepairFailed(too_long) from error
        return bytes(edited), bytes(complaint)


_MOST_LETTERS = 1000
CRASH_POINTS = (
    CrashPoint.AFTER_FENCE,
    CrashPoint.AFTER_FLUSH,
    CrashPoint.AFTER_SEND_OFFSETS,
    CrashPoint.COMMIT_IN_FLIGHT,
    CrashPoint.AFTER_COMMIT,
)
"""Points at which a replay can be made to crash."""
_MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of one replay; ``transaction`` has the group that owns the replays' offsets and transactional ids."""

    group: str
    transaction: TransactionSettings
    rules: ReplayRules
    choice: DeadLetterFilter
    edit: RepairCommand | None = None
    dry_run: bool = False
    crash: CrashPoint | None = None


def replay(dead_letters: DeadLetterTopics, settings: ReplaySettings) -> Iterator[list[Replayed]]:
    """Replay the chosen letters by partition; yield those of each transaction. After an error, run it again."""
    for partition in dead_letters.partitions(settings.choice.partitions):
        worker = _Partition(dead_letters, settings, partition)
        for letters in _chunks(dead_letters.letters([partition])):
            yield worker.work(letters)


def _chunks(batches: Iterator[list[DeadLetter]]) -> Iterator[list[DeadLetter]]:
    """Yield letters in order, as many as fit into one transaction."""
    chunk: list[DeadLetter] = []
    size = 0
    for letter in chain.from_iterable(batches):
        if chunk and (len(chunk) >= _MOST_LETTERS or size + letter.size > _MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(letter)
        size += letter.size
    if chunk:
        yield chunk


class _Partition:
    def __init__(self, dead_letters: DeadLetterTopics, settings: ReplaySettings, partition: int) -> None:
        self._topics, self._settings, self._partition = dead_letters, settings, partition
        self._name, self._replay_log = dead_letters.dead_letter.name, dead_letters.replay_log(partition)
        self._waiting: int | None = None  # the first letter that has not been replayed
        self._check_group()

    def work(self, letters: list[DeadLetter]) -> list[Replayed]:
        """Run one transaction, or none if no letter of ``letters`` is to be replayed."""
        settings, known = self._settings, self._replay_log.offsets
        wanted = [letter for letter in letters if settings.choice.matches(letter)]
        some = any(one.offset not in known and settings.rules.skipped(one) is None for one in wanted)
        if settings.dry_run or not some:
            self._note_waiting(letters, [])
            return [self._decide(letter) for letter in wanted]
        with contextlib.closing(KafkaTransaction(settings.transaction, self._name, self._partition)) as kafka:
            try:
                return self._transact(letters, wanted, kafka)
            except Fenced as error:
                raise Refused(
                    f"another replay of {self._name}[{self._partition}] has fenced this one; when it has "
                    "ended, run this one again, which skips what was replayed"
                ) from error

    def _transact(self, letters: list[DeadLetter], wanted: list[DeadLetter], kafka: KafkaTransaction) -> list[Replayed]:
        """
        Write the selected records, and an entry of the replay log for each, in one transaction.

        *locate* also reads the replay log to its end: a letter with an entry has already been replayed. The offset sent
        is that of the first letter not replayed, for lag tools; only the replay log decides.
        """
        timeout_s = self._settings.transaction.timeout_s
        deadline = Deadline(timeout_s)
        done: list[Replayed] = []

        def decide(committed: Committed | None) -> Write | None:
            self._check_replay_log(committed)
            self._replay_log.read_to_end(self._topics.admin, deadline)
            self._check_group()
            # Repair commands may take long; run them before a transaction is open that makes readers wait.
            done.extend(self._decide(letter) for letter in wanted)
            records = written_back(done)
            self._note_waiting(letters, records)
            if not records:
                return None
            next_offset = self._next_offset(letters, committed)
            write = partial(self._produce_all, records, kafka)
            return Write(write, lambda: next_offset, self._metadata(), Deadline(timeout_s))

        def may_crash(point: CrashPoint) -> None:
            if self._settings.crash is point:
                die(point, kafka)

        # A commit that fails may have been applied: the next run reads the replay log.
        if transact(kafka, decide, deadline, may_crash):
            self._replay_log.offsets.update(record.letter.offset for record in written_back(done))
        return done

    def _produce_all(self, records: list[ReplayRecord], kafka: KafkaTransaction, deadline: Deadline) -> None:
        group, target = self._settings.group, self._settings.rules.input
        with kafka.mapped("produce"):
            for record in records:
                letter = record.letter
                queue(kafka, deadline, target, record.value, letter.key, record.partition, headers=record.headers)
                key = replay_log_key(self._replay_log.dead_letter_id, letter.offset)
                # For people; partition -1: chosen by key.
                entry = {"group": group, "to": target, "partition": record.partition, "count": letter.replays + 1}
                queue(kafka, deadline, self._replay_log.topic, orjson.dumps(entry), key, self._partition)

    def _decide(self, letter: DeadLetter) -> Replayed:
        settings = self._settings
        if letter.offset in self._replay_log.offsets:
            return SkippedDeadLetter(letter, SkipReason.REPLAYED)
        if (stays := settings.rules.skipped(letter)) is not None:
            return stays
        try:
            whole = self._topics.whole(letter)
            if (stays := settings.rules.skipped(whole)) is not None:  # its headers count how often it was replayed
                return stays
            value = whole.value
            if settings.edit is not None:
                value = settings.edit(value)
        except LookupError as error:
            return SkippedDeadLetter(letter, SkipReason.BYTES_GONE, str(error))
        except RepairFailed as error:
            return SkippedDeadLetter(letter, SkipReason.EDIT_FAILED, str(error))
        return settings.rules.replay_record(self._name, whole, value)

    def _note_waiting(self, letters: list[DeadLetter], records: list[ReplayRecord]) -> None:
        out = self._replay_log.offsets | {record.letter.offset for record in records}
        if self._waiting is None:
            self._waiting = next((letter.offset for letter in letters if letter.offset not in out), None)

    def _next_offset(self, letters: list[DeadLetter], committed: Committed | None) -> int:
        """Return the offset below which every letter is replayed; it never moves back."""
        waiting = letters[-1].offset + 1 if self._waiting is None else self._waiting
        if committed is not None and committed.metadata.startswith(self._metadata()):
            return max(waiting, committed.offset)
        return waiting

    def _metadata(self) -> str:
        marks = self._topics.create_replay_log()
        return f"topic-id={self._replay_log.dead_letter_id} marks-id={marks.topic_id}"

    def _check_replay_log(self, committed: Committed | None) -> None:
        """Check that the replay log's topic id is the one in the replay group's offset metadata."""
        metadata = "" if committed is None else committed.metadata
        ours = f"topic-id={self._replay_log.dead_letter_id} marks-id="
        if metadata.startswith(ours) and not metadata.startswith(self._metadata()):
            raise Refused(
                f"the replay log of {self._name}[{self._partition}] is lost: {self._replay_log.topic} was recreated "
                "after dead letters had been replayed; if all of them may be replayed once more, delete the offsets "
                f"of group {self._settings.transaction.group}"
            )

    def _check_group(self) -> None:
        """Check that the group has not changed: it determines the transactional ids, which must fence each other."""
        if self._replay_log.group is not None and self._replay_log.group != self._settings.group:
            raise Refused(
                f"GROUP_ID (--group) is {self._settings.group!r}, but dead letters of {self._name}[{self._partition}] "
                f"were replayed under group {self._replay_log.group!r}; set --group to that one"
            )


def written_back(done: Iterable[Replayed]) -> list[ReplayRecord]:
    return [each for each in done if isinstance(each, ReplayRecord)]
