"""A store in RocksDB: totals larger than memory, and quick restarts after a clean end."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from downstream.totals.store import Changes, Standing
from protocol.errors import Refused

_STANDING = b"\x00standing"
_MARK = "clean"


class RocksStore:
    """
    A directory with a database, a lock, and a mark that is there only after a clean end.

    Without the mark (a kill, a power cut), or with another one's (another changelog), the database is wiped: its writes
    skip the write-ahead log and nothing promises what a kill leaves. The changelog holds it all.
    """

    def __init__(self, home: Path, identity: str) -> None:
        """
        ``identity``: of the changelog that the state belongs to, as its topic id.

        Raises:
            Refused: another process has the directory.
        """
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._identity = home, identity
        self._mark, self._place = home / _MARK, home / "db"
        self._lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise Refused(
                f"the state in {home} is another process's; end that one, or give this one its own --state-dir"
            ) from error
        self.wiped = self._place.exists() and not self.trusted(home, identity)
        if self.wiped:
            shutil.rmtree(self._place)
        self._set_mark(None)
        self._open()

    @staticmethod
    def trusted(home: Path, identity: str) -> bool:
        """Whether the state there was closed in good order, and is of that changelog."""
        mark = home / _MARK
        return mark.exists() and mark.read_text() == identity

    def _set_mark(self, identity: str | None) -> None:
        """Write or remove the mark, and have the disk know before anything else happens."""
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
        self._db = Rdict(str(self._place), options)
        writing = WriteOptions()
        writing.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, whatever its stub says
        self._db.set_write_options(writing)
        known = self._db.get(_STANDING)
        self._standing = None if known is None else Standing.decode(known)

    @property
    def standing(self) -> Standing | None:
        return self._standing

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._db.get(list(keys))  # type: ignore[assignment]  # a list for a list
        return found

    def write(self, changes: Changes, standing: Standing) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(_STANDING, standing.encode())
        self._db.write(batch)
        self._standing = standing

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._db.items():
            if isinstance(key, bytes) and key != _STANDING:
                yield key, value

    def wipe(self) -> None:
        self._db.close()
        shutil.rmtree(self._place)
        self._open()

    def close(self) -> None:
        self._db.flush()
        self._db.close()
        self._set_mark(self._identity)
        os.close(self._lock)
