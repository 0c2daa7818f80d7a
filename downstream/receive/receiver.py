"""Common part of all receivers: identify a message, apply its effect, store the position after it."""

from __future__ import annotations

import hashlib
import json
import reprlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from brew.cli import printable
from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.fault_injection import StoreCrash
from brew.kafka.log_reader import LogRecord
from brew.kafka.topic_reader import headers_of
from brew.observability.recorder import Recorder
from brew.offsets import SourcePosition
from downstream.consume.handler import (
    AssignedPartition,
    Handler,
    HandlerContext,
    LastingFailure,
    PartitionBatch,
    RetryLater,
    start,
)
from downstream.observed import to_stderr

SOURCE = "source"
_LONGEST_ID = 256  # a database index limits its entries; longer ids are replaced by their SHA-256
_LONGEST_SHOWN = 40
NOBODY = "-"
BAD_QUANTITY = "bad-quantity"
"""The reason under which messages with an invalid quantity are counted."""


class Message(NamedTuple):
    """An id that redeliveries share, customer and points, the value, and why it gives no points, if ``refused``."""

    message_id: str
    customer: str
    points: int
    value: bytes
    refused: str = ""


Identify = Callable[[str, LogRecord], str]


def identifier(text: str) -> Identify:
    """
    Return the function that derives ids: `source` (source headers, the default) or `field:NAME` (of the JSON value). A
    record without it is identified by its own position in the topic, which all redeliveries share; two records for the
    same event then have different ids. Raises `UsageError`: ``text`` is neither.
    """
    if text == SOURCE:
        return _source_id
    kind, _, name = text.partition(":")
    if kind != "field" or not name:
        raise UsageError(f"--message-id is {text!r}: give `source`, or `field:` and the name of a field")
    return lambda topic, record: _field_id(topic, record, name)


def messages(topic: str, records: Iterable[LogRecord], identify: Identify) -> list[Message]:
    """Return the records as messages; of several with the same id, only the first."""
    known: dict[str, Message] = {}
    for record in records:
        key = identify(topic, record)
        if key not in known:
            value = record.value() or b""
            customer, points, refused = points_grant(value)
            known[key] = Message(key, customer, points, value, refused)
    return list(known.values())


def _source_id(topic: str, record: LogRecord) -> str:
    source = SourcePosition.of(headers_of(record))  # None is met by the check, behind a record that was left out
    return _own_id(topic, record) if source is None else _short(str(source))


def _field_id(topic: str, record: LogRecord, name: str) -> str:
    value = record.value() or b""
    field = _order(value).get(name)
    if field is None or field == "":
        return _own_id(topic, record)
    if isinstance(field, float) and (whole := _whole_number(value, name)) is not None:
        return _short(f"{name}:{whole}")
    try:
        text = field if isinstance(field, str) else orjson.dumps(field, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:  # it reads a thousand levels of nesting, and writes 254
        return _own_id(topic, record)
    return _short(f"{name}:{text}")


def _whole_number(value: bytes, name: str) -> int | None:
    """Return a number of more than 64 bits, of which the fast parser makes a double; None if it is not whole."""
    try:
        number = json.loads(value)[name]
    except RecursionError:  # the fast parser accepts slightly deeper nesting
        return None
    return number if isinstance(number, int) else None


def _short(text: str) -> str:
    """Return the text, or its digest if a database could not store it."""
    if len(text) <= _LONGEST_ID and "\x00" not in text:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _own_id(topic: str, record: LogRecord) -> str:
    return f"@{topic}/{record.partition()}/{record.offset()}"


def points_grant(value: bytes) -> tuple[str, int, str]:
    """
    Return customer, points, and why there are none, or an empty string: one point per cup. No quantity means one cup;
    without a customer, `NOBODY` gets one point. A quantity that is not an integer from 1 to 2147483647 is refused,
    since a guess would make the balance wrong.
    """
    order = _order(value)
    customer, cups = order.get("customer_id"), order.get("quantity", 1)
    if not isinstance(customer, str) or not 0 < len(customer) <= _LONGEST_ID or "\x00" in customer:
        return NOBODY, 1, ""
    if not isinstance(cups, int) or isinstance(cups, bool) or not 0 < cups < 2**31:
        shown = reprlib.repr(cups)[:_LONGEST_SHOWN]  # `str` fails at the nesting that the parser accepts
        return customer, 0, f"quantity is {shown!r}, must be an integer from 1 to {2**31 - 1}"
    return customer, cups, ""


def _order(value: bytes) -> dict[str, Any]:
    try:
        order = orjson.loads(value)
    except orjson.JSONDecodeError:
        return {}
    return order if isinstance(order, dict) else {}


_TOLD = 5
_PAUSE_S = 1.0


@dataclass
class ReceiverResult:
    """Counters of this process; ``repeated`` messages were known, ``rejected`` ones give no points, however often."""

    messages: int = 0
    effects: int = 0
    repeated: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class ReceiverSettings:
    """What to read, how ids are derived, if all is read again, where to crash; ``tell``: of a weaker guarantee."""

    group: str
    topic: str
    identify: Identify
    again: bool = False
    crash: StoreCrash = field(default_factory=StoreCrash)
    tell: Callable[[str], None] = lambda _text: None


class BackgroundThread:
    """A thread that works in rounds until stopped; `check` raises the error that ended it."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s, self._failure = every_s, LastingFailure(name, to_stderr)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def round(self) -> bool:
        """Do some work; return True if more is due at once. `RetryLater` is retried."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self, deadline: Deadline) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(deadline.remaining_s())

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    more = self.round()
                    self._failure.worked()
                except RetryLater as error:
                    more = False
                    self._failure.failed(str(error))
                    self._stop.wait(_PAUSE_S)
                if not more:
                    self._stop.wait(self._every_s)
        except Exception as error:  # noqa: BLE001 - raised in the loop's thread
            self._error = error


class Receiver(Handler):
    """A handler whose subclasses claim messages and apply their effects; after a loss, the claims show what is done."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self.settings = settings
        self._read_again: dict[int, int] = {}
        """With ``again``, the next offset of each partition that this process has begun to read again."""
        self._left: set[int] = set()
        """Partitions that left this process; others may have read them since."""
        self._ready = False
        self.received = ReceiverResult()
        self.background: list[BackgroundThread] = []
        """Threads that work for this receiver once its store is ready; an error that ends one ends the loop."""
        self.recorder = Recorder.unobserved()
        """Counts the records that were already known, and the refused ones."""

    def prepare(self) -> None:
        """Prepare the store, creating what is missing. Raises `RetryLater` if the store is unavailable."""

    def claim(self, messages: Sequence[Message], context: HandlerContext) -> int:
        """Apply each new message; return the number of new ones. Raises `RetryLater` to be called again."""
        raise NotImplementedError

    def claimed_topic_id(self, topic_id: str, deadline: Deadline, *, replace: bool) -> str:  # noqa: ARG002 - the default
        """
        Return the id of the topic whose messages the store's claims are for; ``topic_id`` if it has none yet. With
        ``replace`` they are for ``topic_id`` from now on. Raises `RetryLater` if the store is unavailable.
        """
        return topic_id

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        deadline.check("taking over partitions")
        self._get_ready()
        for assignment in assignments[:1]:  # all are of one topic
            self._check_same_topic(assignment, deadline)
        return {assignment.partition: self._start(assignment) for assignment in assignments}

    def _get_ready(self) -> None:
        if self._ready:
            return
        self.prepare()
        for thread in self.background:
            thread.start()
        self._ready = True

    def _check_same_topic(self, assignment: AssignedPartition, deadline: Deadline) -> None:
        """Refuse a recreated topic: brokers forget a deleted topic's offsets, but the store keeps its claims."""
        settings, now = self.settings, assignment.topic_id
        claimed = self.claimed_topic_id(now, deadline, replace=settings.again)
        if claimed != now:
            raise Refused(
                f"topic-recreated: the claims of group {settings.group!r} are for the {settings.topic} with id "
                f"{claimed}, but the topic now has id {now}: a message with an earlier one's id would have no effect. "
                "If its messages are new, read it with another --group; if the earlier ones were written again, run "
                "once with --again"
            )

    def _start(self, assignment: AssignedPartition) -> int:
        """With ``again``, continue where this process was: until it reports, the group's offset is the one before."""
        if self.settings.again:
            position, first = self._read_again.setdefault(assignment.partition, assignment.first), assignment.first
            if assignment.partition in self._left and position < first <= (assignment.committed or 0):
                position = first  # another member read what retention deleted since
            if position < first:
                raise Refused(
                    f"input-lost: {assignment.topic}[{assignment.partition}] was read again up to {position}, and "
                    f"retention has deleted the records before {first}; to skip them, run it once more with --again"
                )
            assignment = replace(assignment, committed=position, committed_topic_id=None)
        return start(assignment)

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        context.check(*(batch.partition for batch in batches))
        records = [record for batch in batches for record in batch.records]
        batch_messages = messages(self.settings.topic, records, self.settings.identify)
        effects = self.claim(batch_messages, context)
        self.received.messages += len(records)
        self.received.effects += effects
        self.received.repeated += len(records) - effects
        self.recorder.skipped(len(records) - effects)
        self._refuse(batch_messages)
        done = {batch.partition: batch.until for batch in batches}
        self._read_again |= done
        context.report(done)

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:  # noqa: ARG002 - the handler's shape
        self._left |= set(partitions)

    def lost(self, partitions: Collection[int]) -> None:
        self._left |= set(partitions)

    def _refuse(self, messages: Sequence[Message]) -> None:
        """Count the messages that give no points, and report the first ones."""
        refused = [message for message in messages if message.refused]
        for message in refused[: max(0, _TOLD - self.received.rejected)]:
            self.settings.tell(printable(f"message {message.message_id} gives no points: {message.refused}"))
        self.received.rejected += len(refused)
        if refused:
            self.recorder.rejected(BAD_QUANTITY, len(refused))

    def tick(self, context: HandlerContext) -> None:  # noqa: ARG002 - the handler's shape
        self._get_ready()  # background work runs even if we own no partition
        for thread in self.background:
            thread.check()
