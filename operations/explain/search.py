"""Search for a key in input, output and dead letters, and follow its replays."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from brew.cli import printable
from brew.cluster import OFFSETS_TOPIC
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused, text_of
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import committed_by, log_offsets, offsets_at
from brew.kafka.raw_log import newest_offset_batches
from brew.kafka.topic_reader import readable_headers
from brew.kafka.transactions_admin import TransactionsAdmin
from brew.names import READ_UNCOMMITTED
from brew.offsets import LogOffsets, SinkBatch, SourcePosition
from brew.record import Function, Record, apply
from operations.dlq.dead_letter_reader import DeadLetter
from operations.explain.verdict import Copy, DeliveryStatus, Order, OrderHistory, delivery_status, link_replays
from operations.options import Report
from operations.record_status import RecordState, Spans, spans, visibility, writer_of

_ASK_S = 60.0

_CREATE_TIME = 1  # librdkafka's number for a timestamp that the producer set
DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class OrderTopics:
    """The topics that an order passes through, and the group that reads the first one."""

    input: str
    output: str
    dead_letter: str
    group: str
    also_output: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        return self.input, *self.targets

    @property
    def targets(self) -> dict[str, str]:
        return dict.fromkeys((self.output, *self.also_output), "output") | {self.dead_letter: DEAD_LETTER}


class OrderSearch:
    """One search; ``function`` of the run may drop a record or change it; None: outputs keep key and timestamp."""

    def __init__(
        self,
        connection: Connection,
        order_topics: OrderTopics,
        transactions: TransactionsAdmin,
        report: Report,
        function: Function | None = None,
    ) -> None:
        self._connection, self.order_topics = connection, order_topics
        self._transactions, self._report = transactions, report
        self._function = function
        self._admin = admin(connection)
        self._logs: dict[str, dict[int, LogOffsets]] = {}
        self._sources: dict[SourcePosition, LogRecord | None] = {}
        self.unavailable: list[str] = []

    def logs(self, topic: str) -> dict[int, LogOffsets]:
        """Return the topic's offsets when this search began; empty if there is no such topic."""
        if topic not in self._logs:
            deadline = Deadline(_ASK_S)
            known = topics.describe(self._admin, [topic], deadline).get(topic)
            self._logs[topic] = log_offsets(self._admin, topic, range(known.partitions), deadline) if known else {}
        return self._logs[topic]

    def check(self, *wanted: str) -> None:
        """Refuse topics that do not exist, because an answer about their records would be meaningless."""
        for topic in wanted:
            if not self.logs(topic):
                topics.describe_one(self._admin, topic, Deadline(_ASK_S))

    def sink_record(self, position: SourcePosition) -> tuple[SinkBatch, Copy] | None:
        """Return the record at this position with the sink batch that wrote it; None if no sink wrote it."""
        record = self._at(position.topic, position.partition, position.offset)
        batch = None if record is None else SinkBatch.of(readable_headers(record))
        if record is None or batch is None:
            return None
        copy = self._copy("sink", position.topic, record)
        producer = copy.written.producer_id
        return batch, replace(copy, transactional_id=self._ids([producer]).get(producer))

    def origin(self, topic: str, partition: int, offset: int) -> SourcePosition:
        """Return the source of the record at this place, which may be the place itself; `Refused` if it has none."""
        if (log := self.logs(topic).get(partition)) is None or offset >= log.end:
            why = "there is no such partition" if log is None else f"the log ends at {log.end}"
            raise Refused(
                f"{topic}/{partition}/{offset} does not exist: {why}; run `brew show {topic}` for the newest records"
            )
        record = self._at(topic, partition, offset)
        if topic == self.order_topics.input and (record is not None or offset < log.first):
            return SourcePosition(topic, partition, offset)
        source = None if record is None else _source(record)
        if source is None:
            what = "there is no record (a marker, or deleted)" if record is None else "the record has no source headers"
            raise Refused(f"{topic}/{partition}/{offset}: {what}; give a record of {self.order_topics.input}, or a key")
        if source.topic != self.order_topics.input:  # whose group says nothing of this record
            raise Refused(
                f"{topic}/{partition}/{offset} was made from {source}, and --input is {self.order_topics.input}; set "
                f"--input to {source.topic}, and --group to the group that reads it"
            )
        return source

    def source(self, position: SourcePosition) -> LogRecord | None:
        """Return the input record at this position; None if retention deleted it."""
        if position not in self._sources:
            self._sources[position] = self._at(position.topic, position.partition, position.offset)
        return self._sources[position]

    def matching(
        self, matches: Callable[[LogRecord], bool], since_ms: int | None, most: int | None = None
    ) -> tuple[list[SourcePosition], int]:
        """Return the positions of the ``most`` newest matching input records, and the total number of matches."""
        last: defaultdict[int, deque[tuple[int, SourcePosition]]] = defaultdict(lambda: deque(maxlen=most))
        count = 0
        for record in filter(matches, self._records(self.order_topics.input, since_ms)):
            position = SourcePosition(self.order_topics.input, record.partition(), record.offset())
            last[position.partition].append((record.timestamp()[1], position))
            count += 1
        # Partitions are read side by side, so the order in which records come says nothing of their age.
        newest = sorted(chain.from_iterable(last.values()))
        return [position for _, position in newest[-(most or len(newest)) :]], count

    def histories(self, wanted: Iterable[SourcePosition]) -> list[OrderHistory]:
        asked = list(dict.fromkeys(wanted))
        sources = {position: self.source(position) for position in asked}
        copies: defaultdict[SourcePosition, list[Copy]] = defaultdict(list)
        # Positions before log ends: whatever was committed by then lies within the logs.
        positions = self._positions({position.partition for position in asked})
        for topic in self.order_topics.targets:
            self._logs.pop(topic, None)
        since_ms = earliest(sources.values()) if self._function is None else None
        # Headers cost more to read than keys, but a function may change the key, and the timestamp.
        keyed = self._function is None and all(record is not None for record in sources.values())
        matches = self._search(sources, since_ms, keyed=keyed)
        missing = set(asked) - {position for position, _, _ in matches}
        if (since_ms is not None or keyed) and any(
            (positions.get(position.partition) or 0) > position.offset for position in missing
        ):
            matches = self._search(sources, None, keyed=False)
        for position, topic, record in matches:
            copy = self._copy(self.order_topics.targets[topic], topic, record)
            if copy.role == DEAD_LETTER:
                letter = DeadLetter.of(record)
                copy = replace(copy, reason=printable(letter.reason), message=printable(letter.message))
            copies[position].append(copy)
        named = self._named(copies)
        gone = {name for name in self.order_topics.targets if not self.logs(name)}
        self.unavailable += sorted({f"topic {name} does not exist" for name in gone} - set(self.unavailable))
        complete = not gone and all(
            log.first == 0 for name in self.order_topics.targets for log in self.logs(name).values()
        )
        histories = [
            OrderHistory(
                position,
                None if (source := sources[position]) is None else self._copy("input", position.topic, source),
                tuple(named(position, copy) for copy in copies[position]),
                positions.get(position.partition),
                complete,
                None if source is None else Order.of(source.value(), readable_headers(source)),
                dropped=all(copy.written.state is RecordState.ABORTED for copy in copies[position])
                and self._drops(source),
            )
            for position in asked
        ]
        lost = any(delivery_status(history)[0] is DeliveryStatus.LOST for history in histories)
        if lost and self._may_be_compacted():  # asked only then, because it takes DescribeConfigs
            return [replace(history, complete=False) for history in histories]
        return histories

    def _may_be_compacted(self) -> bool:
        """Return whether an output topic is compacted, which removes copies; False, with a note, if nobody knows."""
        there = [name for name in self.order_topics.targets if self.logs(name)]
        try:
            policies = [topics.cleanup_policy(self._admin, name, Deadline(_ASK_S)) for name in there]
        except BrewError as error:
            self.unavailable.append(f"whether compaction removed a copy: {error}")
            return False
        return any("compact" in policy for policy in policies)

    def _drops(self, source: LogRecord | None) -> bool:
        if self._function is None or source is None:
            return False
        place = (self.order_topics.input, source.partition(), source.offset())
        record = Record(*place, source.key(), source.value(), readable_headers(source), source.timestamp()[1])
        try:
            return apply(self._function, record) == ()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function may raise anything
            self.unavailable.append(f"the function raised {type(error).__name__} on {record}: {text_of(error)}")
            return False

    def _at(self, topic: str, partition: int, offset: int) -> LogRecord | None:
        if (log := self.logs(topic).get(partition)) is None or not log.first <= offset < log.end:
            return None
        span = {partition: (offset, offset + 1)}
        batches = scan(self._connection, topic, span, READ_UNCOMMITTED, group=self.order_topics.group)
        return next((record for batch in batches for record in batch if record.offset() == offset), None)

    def _records(self, topic: str, since_ms: int | None) -> Iterator[LogRecord]:
        logs = self.logs(topic)
        starts: Mapping[int, int | None] = {p: log.first for p, log in logs.items()}
        if since_ms is not None and logs:
            starts = offsets_at(self._admin, topic, logs, since_ms, Deadline(_ASK_S))
        ranges = {p: (start, logs[p].end) for p, start in starts.items() if start is not None}
        total, read = sum(until - start for start, until in ranges.values()), 0
        for batch in scan(self._connection, topic, ranges, READ_UNCOMMITTED, group=self.order_topics.group):
            yield from batch
            read += len(batch)
            self._report(topic, read, total)

    def _of_call(self, topic: str, record: LogRecord) -> bool:
        """Return whether it is a dead letter of `brew call`: it is about an output, whose source headers it carries."""
        return topic == self.order_topics.dead_letter and DeadLetter.of(record).output is not None

    def _search(
        self, sources: Mapping[SourcePosition, LogRecord | None], since_ms: int | None, *, keyed: bool
    ) -> list[tuple[SourcePosition, str, LogRecord]]:
        """Return the records of outputs and dead letters that came from these sources by their headers, with topics."""
        keys = {record.key() for record in sources.values() if record is not None}
        matches = []
        for topic in self.order_topics.targets if sources else ():
            for record in self._records(topic, since_ms):
                if not keyed or record.key() in keys:
                    source = _source(record)
                    if source is not None and source in sources and not self._of_call(topic, record):
                        matches.append((source, topic, record))
        return matches

    def _copy(self, role: str, topic: str, record: LogRecord) -> Copy:
        partition, offset = record.partition(), record.offset()
        log = self.logs(topic)[partition]
        batches = self._transactions.raw.batches(topic, partition, offset, log.end, Deadline(_ASK_S))
        written = writer_of(offset, (batch for batch, _ in batches))
        source = None if role == "input" else SourcePosition.of(readable_headers(record))
        index = 0 if source is None else source.index
        return Copy(role, topic, partition, offset, written, visibility(offset, written, log), index=index)

    def _named(self, copies: Mapping[SourcePosition, list[Copy]]) -> Callable[[SourcePosition, Copy], Copy]:
        """Return a function that adds transactional id and input range, from coordinators and the offset log."""
        producers = {
            one.written.producer_id for some in copies.values() for one in some if one.written.producer_id >= 0
        }
        names = self._ids(producers)
        known = self._spans if producers else {}

        def name(position: SourcePosition, copy: Copy) -> Copy:
            span = known.get((copy.written.producer_id, copy.written.producer_epoch), {}).get(position.partition)
            return replace(copy, transactional_id=names.get(copy.written.producer_id), span=span)

        return name

    def _ids(self, producers: Iterable[int]) -> dict[int, str]:
        """Return producer id -> transactional id, as far as the coordinators know them."""
        try:
            return {known.producer_id: known.transactional_id for known in self._transactions.of_producers(producers)}
        except BrewError as error:
            self.unavailable.append(str(error))
            return {}

    @cached_property
    def _spans(self) -> Spans:
        """The ranges of the group's transactions, as far as the offset log still has them."""
        group, deadline = self.order_topics.group, Deadline(_ASK_S)
        try:
            partitions = topics.describe_one(self._admin, OFFSETS_TOPIC, deadline).partitions
            whose = (group, self.order_topics.input, partitions)
            batches = newest_offset_batches(self._admin, self._transactions.raw, *whose, deadline)
            return spans(batches, {p: bounds.first for p, bounds in self.logs(self.order_topics.input).items()})
        except BrewError as error:
            self.unavailable.append(str(error))
            return {}

    def _positions(self, partitions: Iterable[int]) -> dict[int, int | None]:
        known = [p for p in partitions if p in self.logs(self.order_topics.input)]
        whose = (self._connection, self.order_topics.group, self.order_topics.input)
        positions = committed_by(*whose, known, READ_UNCOMMITTED, Deadline(_ASK_S))
        return {p: None if committed is None else committed.offset for p, committed in positions.items()}


def _source(record: LogRecord) -> SourcePosition | None:
    """Return the position of the input record that this one came from, whichever of its outputs it is."""
    source = SourcePosition.of(readable_headers(record))
    return None if source is None else replace(source, index=0)


def earliest(sources: Iterable[LogRecord | None]) -> int | None:
    """Return the earliest source timestamp; no copy is older, because it carries its source's. None if unknown."""
    stamps = [None if record is None else record.timestamp() for record in sources]
    known = [stamp[1] for stamp in stamps if stamp is not None and stamp[0] == _CREATE_TIME]
    return min(known) if known and len(known) == len(stamps) else None


def related_records(tracer: OrderSearch, asked: Iterable[SourcePosition]) -> list[OrderHistory]:
    """Return histories of these records and of all that are connected to them by replays, in position order."""
    histories = tracer.histories(_with_originals(tracer, asked))
    looked: set[str] = set()
    while letters := {letter.location for history in histories for letter in history.letters} - looked:
        looked |= letters
        replayed = _replays(tracer, histories, letters) - {history.at for history in histories}
        histories += tracer.histories(sorted(replayed)) if replayed else []
    return link_replays(histories)


def _with_originals(tracer: OrderSearch, asked: Iterable[SourcePosition]) -> list[SourcePosition]:
    positions = dict.fromkeys(asked)
    new = deque(positions)
    while new:
        origin = _original(tracer, tracer.source(new.popleft()))
        if origin is not None and origin not in positions:
            positions[origin] = None
            new.append(origin)
    return list(positions)


def _original(tracer: OrderSearch, record: LogRecord | None) -> SourcePosition | None:
    """Return the position of the input record whose dead letter was replayed as this record."""
    letter = None if record is None else Order.of(None, readable_headers(record)).replay_of
    if letter is None or letter.topic != tracer.order_topics.dead_letter:
        return None
    try:
        return tracer.origin(letter.topic, letter.partition, letter.offset)
    except Refused as error:
        tracer.unavailable.append(f"the record that was replayed from {letter}: {error}")
        return None


def _replays(tracer: OrderSearch, histories: Iterable[OrderHistory], letters: set[str]) -> set[SourcePosition]:
    """Return the input records that these dead letters were replayed as; a replay keeps the key, and is newer."""
    sources = [tracer.source(history.at) for history in histories if history.letters]
    keys = {source.key() for source in sources if source is not None} if None not in sources else None

    def matches(record: LogRecord) -> bool:
        if keys is not None and record.key() not in keys:
            return False
        return str(Order.of(None, readable_headers(record)).replay_of) in letters

    return set(tracer.matching(matches, earliest(sources))[0])
