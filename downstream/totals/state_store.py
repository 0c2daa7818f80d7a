"""One partition's totals between transactions, in memory or in RocksDB, restored from the changelog."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.kafka.clients import AdminClient
from brew.kafka.log_reader import RangeReader, scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED
from brew.offsets import LogOffsets
from downstream.totals.topics import TotalsSettings

Changes = Mapping[bytes, bytes | None]
"""Key -> new value; None deletes the key."""
CHECKPOINT_KEY = b"\x00standing"
"""
The key of the record that ends a transaction's changes: how far the deltas are, and the number of totals.

RocksDB has its `StoreCheckpoint` under the same key.
"""
_INPUT_KEY = b"\x00input/"


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """
    A store's progress: it contains all deltas below ``until``, and at least all of the changelog below ``changelog``.
    Reading part of the changelog again is harmless, since it holds totals and not changes. ``keys`` is the number of
    totals in the store; the changelog records it too, so that a damaged one is noticed.
    """

    until: int
    changelog: int
    keys: int

    def encode(self) -> bytes:
        return f"{self.until} {self.changelog} {self.keys}".encode()

    @classmethod
    def decode(cls, text: bytes) -> StoreCheckpoint:
        return cls(*map(int, text.split(b" ")))


def put(values: dict[bytes, bytes], changes: Changes) -> None:
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value


class MemoryStore:
    """One partition's totals in a dict: lost with the process, and restored from the changelog."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self.checkpoint: StoreCheckpoint | None = None
        """The store's progress; None while it is empty."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._values.get, keys))

    def write(self, changes: Changes, checkpoint: StoreCheckpoint) -> None:
        """Write changes and checkpoint together; only committed ones are written."""
        put(self._values, changes)
        self.checkpoint = checkpoint

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self._values.items()

    def wipe(self) -> None:
        self._values.clear()
        self.checkpoint = None

    def close(self) -> None:
        self.wipe()


_MARK = "clean"


class RocksStore:
    """
    A directory with a RocksDB database, a lock, and a marker file that exists only after a clean shutdown. If the
    marker is missing (a kill, a power cut) or belongs to another changelog, the database is wiped: its writes skip the
    write-ahead log, so its contents after a kill are undefined. The changelog contains everything.
    """

    def __init__(self, home: Path, identity: str) -> None:
        """
        ``identity`` identifies the changelog that the state belongs to, for example its topic id. Raises `Refused`:
        another process has the directory.
        """
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._identity = home, identity
        self._mark, self._path = home / _MARK, home / "db"
        self._lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise Refused(
                f"the state in {home} is in use by another process; stop it, or choose another --state-dir"
            ) from error
        self.wiped = self._path.exists() and not self.trusted(home, identity)
        if self.wiped:
            shutil.rmtree(self._path)
        self._set_mark(None)
        try:
            self._open()
        except Exception:  # noqa: BLE001 - all that the library raises, for files that are damaged or lost
            self.wiped = True
            shutil.rmtree(self._path, ignore_errors=True)
            with self._writing():
                self._open()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise `Refused` for the library's errors, which have no class of their own: mostly, the disk is full."""
        try:
            yield
        except Exception as error:
            raise Refused(
                f"the state in {self._home} can't be written: {error}; free space there or name another --state-dir, "
                "then run again: it is restored from the changelog"
            ) from error

    @staticmethod
    def trusted(home: Path, identity: str) -> bool:
        """Return True if the state was closed cleanly and belongs to that changelog."""
        mark = home / _MARK
        return mark.exists() and mark.read_text() == identity

    def _set_mark(self, identity: str | None) -> None:
        """Write or remove the marker, and sync it to disk before returning."""
        if identity is None:
            self._mark.unlink(missing_ok=True)
        else:
            self._mark.write_text(identity)
        for path in (self._mark, self._home):
            if path.exists():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def _open(self) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(self._path), options)
        writing = WriteOptions()
        writing.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, whatever its stub says
        self._db.set_write_options(writing)
        known = self._db.get(CHECKPOINT_KEY)
        self.checkpoint = None if known is None else StoreCheckpoint.decode(known)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._db.get(list(keys))  # type: ignore[assignment]  # a list for a list
        return values

    def write(self, changes: Changes, checkpoint: StoreCheckpoint) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(CHECKPOINT_KEY, checkpoint.encode())
        with self._writing():
            self._db.write(batch)
        self.checkpoint = checkpoint

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._db.items():
            if isinstance(key, bytes) and key != CHECKPOINT_KEY:
                yield key, value

    def wipe(self) -> None:
        self._db.close()
        shutil.rmtree(self._path)
        self._open()

    def close(self) -> None:
        """Close cleanly, so that the next process can trust the store."""
        with self._writing():
            self._db.flush()
        self._db.close()
        self._set_mark(self._identity)
        os.close(self._lock)


Store = MemoryStore | RocksStore

_PAUSE_S = 0.01
_ASK_S = 15.0
_STABLE_S = 45.0


def checkpoint_value(until: int, keys: int) -> bytes:
    return f"{until} {keys}".encode()


def parse_checkpoint(value: bytes) -> tuple[int, int]:
    """Return the offset and the number of totals that `checkpoint_value` was given; `Refused` for anything else."""
    try:
        until, keys = map(int, value.split(b" "))
    except ValueError as error:
        raise Refused(
            f"changelog-damaged: the changelog has {value[:80]!r} in place of a checkpoint, so another program wrote "
            "it; only this program's group may write there. Count again with another --group and another --output"
        ) from error
    return until, keys


def input_key(partition: int) -> bytes:
    """
    Return the changelog's key for an input partition whose orders are counted: a `counted_value`, and no total. The
    group's offset alone does not show it: brokers delete an offset that was not committed anew for
    `offsets.retention.minutes`, and the changelog keeps its keys for ever.
    """
    return _INPUT_KEY + b"%d" % partition


def is_total(key: bytes | None) -> bool:
    return key is not None and key != CHECKPOINT_KEY and not key.startswith(_INPUT_KEY)


def counted_value(until: int, topic_id: str) -> bytes:
    return f"{until} {topic_id}".encode()


def parse_counted(value: bytes) -> tuple[int, str]:
    until, _, topic_id = value.decode().partition(" ")
    return int(until), topic_id


def counted_before(settings: TotalsSettings, client: AdminClient, partition: int, key: bytes) -> tuple[int, str] | None:
    """
    Return an offset that an input partition was counted to, and that topic's id; None if it was never counted.
    ``partition`` is the changelog's, where the input partition has this ``key``. The caller must have fenced the input
    partition's transactional id.
    """
    topic, stable_s = settings.changelog, min(_STABLE_S, settings.restore_s)
    log = wait_until_stable(client, topic, [partition], Deadline(stable_s))[partition]
    ranges = {partition: (log.first, log.last_stable)}
    value: bytes | None = None
    for batch in scan(settings.connection, topic, ranges, READ_COMMITTED, group=settings.group):
        value = next((record.value() for record in reversed(batch) if record.key() == key), value)
    return None if value is None else parse_counted(value)


def wait_until_stable(
    client: AdminClient, topic: str, partitions: Iterable[int], deadline: Deadline
) -> dict[int, LogOffsets]:
    """Wait until no transaction is open here, as markers follow a commit; return the offsets, or `DeadlineExceeded`."""
    while True:
        logs = log_offsets(client, topic, partitions, Deadline(_ASK_S))
        waiting = [p for p, log in logs.items() if log.last_stable < log.end]
        if not waiting:
            return logs
        if deadline.remaining_s() <= _PAUSE_S:
            raise DeadlineExceeded(
                f"{topic}{waiting} has an open transaction from offset {logs[waiting[0]].last_stable} on after "
                f"{deadline.budget_s:g} s; only this program's group may write there"
            )
        time.sleep(_PAUSE_S)


def restore(settings: TotalsSettings, client: AdminClient, partition: int, store: Store, stop: threading.Event) -> int:
    """
    Read the changelog after the store's checkpoint; return the number of records read. The caller must have fenced the
    partition's transactional id, so that no other process is writing.

    Raises:
        DeadlineExceeded: it took too long, or ``stop`` was set; the next restore continues from here.
        Refused: the changelog has lost records; a total built on it would be wrong.
    """
    topic, deadline = settings.changelog, Deadline(settings.restore_s)
    log = wait_until_stable(client, topic, [partition], Deadline(min(_STABLE_S, settings.restore_s)))[partition]
    checkpoint = store.checkpoint
    if checkpoint is not None and not log.first <= checkpoint.changelog <= log.end:
        store.wipe()
        checkpoint = None
    start = log.first if checkpoint is None else checkpoint.changelog
    began, told_keys, keys = (-1, 0, 0) if checkpoint is None else (checkpoint.until, checkpoint.keys, checkpoint.keys)
    until, done, reached, again_from = began, 0, start, log.end
    with closing(RangeReader(settings.connection, topic, partition, settings.group)) as reader:
        for batch in reader.read(start, log.end, deadline, stop):
            changes: dict[bytes, bytes | None] = {}
            for record in batch:
                key, value = record.key(), record.value()
                if key == CHECKPOINT_KEY and value is not None:
                    (until, told_keys), again_from = parse_checkpoint(value), record.offset()
                elif key is not None and is_total(key):
                    changes[key] = value
            counted = sum(record.key() == CHECKPOINT_KEY or is_total(record.key()) for record in batch)
            if not counted:
                continue  # input partitions only: they change no state
            keys += growth(store, changes)
            done, reached = done + counted, batch[-1].offset() + 1
            # Until all is read and compared, the state is not at its new offset, and an interrupted restore reads the
            # latest checkpoint again: it says how many totals there must be.
            store.write(changes, StoreCheckpoint(began, min(reached, again_from), keys))
    if keys != told_keys:
        store.wipe()
        raise Refused(
            f"changelog-damaged: {topic}[{partition}] has {keys} totals, but its last transaction left {told_keys}; "
            "its cleanup.policy must be compact, and no other program may write or delete there. "
            "Count again with another --group and another --output, or restore the topic"
        )
    if done:
        store.write({}, StoreCheckpoint(until, reached, keys))
    return done


def growth(store: Store, changes: Changes) -> int:
    """Return by how many totals these changes make the store grow."""
    known = store.get(list(changes))
    return sum((new is not None) - (old is not None) for new, old in zip(changes.values(), known, strict=True))
