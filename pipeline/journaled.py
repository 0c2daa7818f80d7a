"""A transaction that writes down each step before and after it (`--journal`), for the checker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pipeline.outcome import Outcome
from pipeline.ports import Transaction
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.journal import Journal, Phase, Step
from protocol.names import TransactionalId
from protocol.position import Committed, OffsetRange


def journaled(kafka: Transaction, folder: str | None, offered: OffsetRange, group: str) -> Transaction:
    """``kafka`` itself, or the same with a journal in ``folder``."""
    return kafka if folder is None else _Journaled(kafka, _journal(folder, os.getpid()), _place(offered, group))


def tell(folder: str | None, offered: OffsetRange, group: str, outcome: Outcome) -> None:
    """Close an attempt's lines with what became of it."""
    if folder is not None:
        said = {"status": outcome.status, "position": outcome.position, "detail": outcome.detail}
        fields = {
            **_place(offered, group),
            "until": outcome.until,
            **said,
            "enriched": outcome.enriched,
            "rejected": outcome.rejected,
        }
        _journal(folder, os.getpid()).write(Step.OUTCOME, Phase.DONE, **fields)


@functools.cache
def _journal(folder: str, _pid: int) -> Journal:
    """The journal of one process; Spark forks its workers, so the process is part of the key."""
    return Journal(Path(folder), "writer")


def _place(offered: OffsetRange, group: str) -> dict[str, Any]:
    return {
        "topic": offered.topic,
        "partition": offered.partition,
        "start": offered.start,
        "until": offered.until,
        "group": group,
        "transactional_id": str(TransactionalId(group, offered.topic, offered.partition)),
    }


class _Journaled:
    """The kernel's port, every step announced and answered; `produce` goes by unseen, its flush tells."""

    def __init__(self, kafka: Transaction, journal: Journal, place: dict[str, Any]) -> None:
        self._kafka, self._journal, self._place = kafka, journal, place
        self.produce: Callable[..., None] = kafka.produce

    @contextmanager
    def _step(self, step: Step, **fields: Any) -> Iterator[dict[str, Any]]:
        self._journal.write(step, Phase.INTENT, **self._place, **fields)
        try:
            yield fields
        except BrewError as error:
            detail = f"{type(error).__name__}: {error}"
            self._journal.write(step, Phase.FAILED, **self._place, **fields, detail=detail)
            raise
        self._journal.write(step, Phase.DONE, **self._place, **fields)

    def mapped(self, step: str) -> AbstractContextManager[None]:
        return self._kafka.mapped(step)

    def fence(self, deadline: Deadline) -> None:
        with self._step(Step.FENCE):
            self._kafka.fence(deadline)

    def locate(self, deadline: Deadline) -> Committed | None:
        with self._step(Step.LOCATE) as fields:
            found = self._kafka.locate(deadline)
            fields["position"] = -1 if found is None else found.offset
        return found

    def begin(self) -> None:
        with self._step(Step.BEGIN):
            self._kafka.begin()

    def make_room(self, deadline: Deadline) -> None:
        self._kafka.make_room(deadline)

    def settle(self, deadline: Deadline) -> None:
        self._kafka.settle(deadline)

    def flush(self, deadline: Deadline) -> None:
        with self._step(Step.FLUSH):
            self._kafka.flush(deadline)

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        self._place["until"] = until  # a range that was read on while it was written ends here
        with self._step(Step.SEND_OFFSETS, offset=until):
            self._kafka.send_offsets(until, metadata, deadline)

    def commit(self, deadline: Deadline) -> None:
        with self._step(Step.COMMIT):
            self._kafka.commit(deadline)

    def commit_without_waiting(self) -> None:
        with self._step(Step.COMMIT):
            self._kafka.commit_without_waiting()

    def abort(self, deadline: Deadline) -> None:
        with self._step(Step.ABORT):
            self._kafka.abort(deadline)
