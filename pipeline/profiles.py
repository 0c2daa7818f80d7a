"""Customer profiles from a compacted topic: read to the end before each transaction, held as a table."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping

import orjson

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Fatal, Refused
from brew.kafka import topics
from brew.kafka.clients import admin, mapped
from brew.kafka.topic_reader import FullTopicReader
from brew.names import quantity
from brew.orders import COMPACT, CUSTOMER_FIELD, DISCOUNTS, NO_PROFILE, PROFILE_OFFSET, PROFILE_TIER_FIELD, STANDARD
from brew.record import Record, Reject, why_not_json
from brew.settings import ProfilesSettings

_TIERS = tuple(DISCOUNTS)
_NUMBERS = {tier: bytes([number]) for number, tier in enumerate(_TIERS)}
_TOLD = 5
NOT_A_PROFILE = "not-a-profile"
"""The reason for which `check_profile` rejects a record."""
Resolve = Callable[[bytes | None, dict[str, object]], str]
Evidence = Callable[[], tuple[str, bytes | None]]


class MalformedProfileError(ValueError):
    """The record is not a profile; the text says why."""


def tier_of(customer: str, value: bytes) -> str:
    """Return the tier in a profile's value; ``customer`` is its key. Raises `MalformedProfileError`."""
    if not customer:
        raise MalformedProfileError("the key is empty, it has to be the customer_id")
    try:
        profile = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MalformedProfileError(f"the value is {why_not_json(value, error)}") from error
    if type(profile) is not dict:
        raise MalformedProfileError(f"the value is a JSON {type(profile).__name__}, an object is needed")
    if profile.get(CUSTOMER_FIELD, customer) != customer:
        raise MalformedProfileError(f"the key is {customer!r}, the value's customer_id another one")
    tier = profile.get(PROFILE_TIER_FIELD)
    if type(tier) is not str or tier not in DISCOUNTS:
        raise MalformedProfileError(f"tier is {str(tier)[:40]!r}, known are {', '.join(DISCOUNTS)}")
    return tier


def check_profile(record: Record) -> None:
    """
    Drop valid profiles and reject all other records: a transformation of the profiles' topic. A separate run writes
    these dead letters, because it has a position: every process that holds a table reads all profiles, and would write
    each dead letter again.
    """
    try:
        customer = (record.key or b"").decode()
        if record.value is not None:
            tier_of(customer, record.value)
    except UnicodeDecodeError as error:
        raise Reject(NOT_A_PROFILE, "the key is not UTF-8") from error
    except MalformedProfileError as error:
        raise Reject(NOT_A_PROFILE, str(error)) from error


class Table:
    """
    Customer -> tier, and the position of the profile that says so.

    An entry is one bytes object, the tier's number and the header's text: measured at 150 bytes per customer with key
    and dictionary. Entries are replaced as a whole, so that a thread that looks up while another one updates sees the
    old or the new one. ``malformed`` counts records that are not profiles; the first ones are in ``complaints``.
    """

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.nobody = _no_profile({})
        self.malformed = 0
        self.complaints: list[str] = []

    def take(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Apply one record. A tombstone or a malformed profile removes the customer."""
        try:
            customer = (key or b"").decode()
        except UnicodeDecodeError:
            self._complain(f"{topic}[{partition}] offset {offset}: the key is not UTF-8")
            return
        if value is None:
            self.entries.pop(customer, None)
            return
        try:
            tier = tier_of(customer, value)
        except MalformedProfileError as error:
            # The previous profile is not kept: a process that loads after compaction would not know it.
            self.entries.pop(customer, None)
            self._complain(f"{topic}[{partition}] offset {offset}: {error}")
            return
        self.entries[customer] = b"%b%d/%d" % (_NUMBERS[tier], partition, offset)

    def read_to(self, positions: Mapping[int, int]) -> None:
        """Record that all visible records below these offsets have been applied."""
        self.nobody = _no_profile(positions)

    def _complain(self, what: str) -> None:
        self.malformed += 1
        if len(self.complaints) < _TOLD:
            self.complaints.append(what)


def _no_profile(positions: Mapping[int, int]) -> bytes:
    """Return the entry of a customer without a profile: how far the table had been read."""
    read = b",".join(b"%d" % positions[partition] for partition in sorted(positions))
    return b"%b%b %b" % (_NUMBERS[STANDARD], NO_PROFILE, read)


def lookup(table: Table) -> tuple[Resolve, Evidence]:
    """Return a resolver (a customer_id that is no text has none) and its last profile's header; for one thread."""
    get = table.entries.get
    tiers, last = _TIERS, b""

    def resolve(_key: bytes | None, order: dict[str, object]) -> str:
        nonlocal last
        customer = order["customer_id"]
        found = get(customer) if type(customer) is str else None
        last = found if found is not None else table.nobody
        return tiers[last[0]]

    def evidence() -> tuple[str, bytes | None]:
        return PROFILE_OFFSET, last[1:]

    return resolve, evidence


def check(settings: ProfilesSettings, connection: Connection, deadline: Deadline) -> None:
    """Check that the run can use its profiles; raises `Refused` if the topic is missing, or loses some over time."""
    name, client = settings.topic, admin(connection)
    with mapped("check of the profiles"):
        found = topics.describe(client, [name], deadline)
        if name not in found:
            raise Refused(
                f"profiles topic {name!r} is not on {connection.bootstrap}; make it (`brew topics`, or "
                "`make topic-create-all` in a checkout), name another with PROFILES_TOPIC (--profiles-topic), or do "
                "without: TIERS=prefix (--tiers)"
            )
        policy = topics.cleanup_policy(client, name, deadline)
    if policy != COMPACT:
        raise Refused(
            f"profiles topic {name!r} has cleanup.policy={policy}, which removes the newest profile of a customer with "
            f"time; it needs cleanup.policy={COMPACT}: set it, or name another topic with PROFILES_TOPIC "
            "(--profiles-topic)"
        )


_TELL_S = 2.0
_LEAVE_S = 1.0
_ASK_S = 5.0


class GlobalTable:
    """One topic's table, shared by all threads of one process."""

    def __init__(self, connection: Connection, group: str, settings: ProfilesSettings) -> None:
        self._connection, self._group, self._settings = connection, group, settings
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._asked_at = float("-inf")
        self._source: FullTopicReader | None = None
        self._table = Table()
        self.loaded = False

    def ready(self, timeout_s: float) -> Table:
        """
        Return the table with every profile that was visible at the time of the call; the first call loads it. So an
        order that was written after its customer's profile is enriched with that profile, or with a newer one.

        Raises:
            DeadlineExceeded: it could not be read in time; the next call continues from there.
            Refused, KafkaFailure: the topic does not exist, or can't be read.
        """
        arrived = time.monotonic()
        deadline = Deadline(timeout_s if self.loaded else self._settings.load_timeout_s)
        if not self._lock.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceeded(f"profiles: another thread has been reading them for {deadline.budget_s:g} s")
        try:
            if self._asked_at < arrived:  # else another thread queried the end while this one waited
                self._read(deadline)
        except DeadlineExceeded:
            if self._source is not None and not self._stop.is_set():
                self._source.replace_if_cut_off()
            raise
        except BrewError:  # profiles may have been lost with it
            self._forget()
            raise
        else:
            return self._table
        finally:
            self._lock.release()

    def _read(self, deadline: Deadline) -> None:
        if self._stop.is_set():
            raise DeadlineExceeded("profiles: left because the run stops")
        began = time.monotonic()
        asking = deadline.part(_ASK_S)  # a stop is not noticed meanwhile
        if self._source is not None and self._source.is_stale(asking):
            _report(f"profiles: {self._settings.topic} was recreated or has more partitions: it is read again")
            self._forget()
        if self._source is None:
            self._source = FullTopicReader(self._connection, self._settings.topic, self._group, asking)
        source, table = self._source, self._table
        ends = source.ends(asking)
        if any(end < source.positions[partition] for partition, end in ends.items()):
            raise Fatal(f"profiles: {source.topic} ends before what was read of it: it was made again, or cut off")
        malformed = table.malformed
        tell_at = began + _TELL_S
        for batch in source.read(ends, deadline, self._stop):
            for record in batch:
                table.take(source.topic, record.partition(), record.offset(), record.key(), record.value())
            if not self.loaded and time.monotonic() >= tell_at:
                tell_at = time.monotonic() + _TELL_S
                done = sum(min(source.positions[p], end) for p, end in ends.items())
                _report(f"profiles: {source.topic} read to {done:,} of {quantity(sum(ends.values()), 'offset', ',')}")
        table.read_to(source.positions)
        if table.malformed > malformed:
            unread = quantity(table.malformed, "record")
            _report(f"profiles: {unread} can't be read: their customers have none, first {'; '.join(table.complaints)}")
        if not self.loaded:
            held = f"{quantity(len(table.entries), 'customer', ',')} of {source.topic} held"
            _report(f"profiles: {held}, {time.monotonic() - began:.1f} s")
        self._asked_at, self.loaded = began, True

    def _forget(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source, self._table, self.loaded, self._asked_at = None, Table(), False, float("-inf")

    def close(self) -> None:
        """Cancel a running load and close the client."""
        self._stop.set()
        if self._lock.acquire(timeout=_LEAVE_S):
            self._forget()
            self._lock.release()


def _report(text: str) -> None:
    sys.stderr.write(f"pipeline: {text}\n")
    sys.stderr.flush()


_tables: dict[tuple[int, str, str], GlobalTable] = {}
_guard = threading.Lock()


def ready(settings: ProfilesSettings, connection: Connection, group: str, timeout_s: float) -> Table:
    """Return this process's table, like `GlobalTable.ready`."""
    # Spark forks its workers, so the process is part of the key.
    key = (os.getpid(), connection.bootstrap, settings.topic)
    with _guard:
        held = _tables.get(key)
        if held is None:
            held = _tables[key] = GlobalTable(connection, group, settings)
    return held.ready(timeout_s)


def close_tables(*, loading_only: bool = False) -> None:
    """Close this process's tables; with ``loading_only``, cancel running loads and keep the rest."""
    with _guard:
        gone = [key for key, held in _tables.items() if not (loading_only and held.loaded)]
        given = [_tables.pop(key) for key in gone]
    for held in given:
        held.close()
