"""Mutants in the default reader: the records it passes on, and how a task moves on after a failure or in a lease."""

from __future__ import annotations

from typing import Any

from brew.outcome import Status
from brew.readers.direct import worker
from brew.readers.direct.worker import _PartitionWorker
from mutants.mutant import Changes, Method, mutant


@mutant("D22", on="direct-payloads", named="corrupt-output")
def null_key_becomes_empty(change: Changes) -> None:
    """A record without a key is written with an empty key, which is a different record."""

    def rows_of(old: Method, taken: Any) -> Any:
        rows = old(taken)
        return rows._replace(keys=[key or b"" for key in rows.keys])

    change.wrap(worker, "rows_of", rows_of)


@mutant("D22", on="direct-payloads", named="corrupt-output")
def headers_of_one_name_become_one(change: Changes) -> None:
    """If several input headers share a name, only the last one is kept."""

    def rows_of(old: Method, taken: Any) -> Any:
        rows = old(taken)
        return rows._replace(headers=[headers and list(dict(headers).items()) for headers in rows.headers])

    change.wrap(worker, "rows_of", rows_of)


@mutant("D11", on="direct-failing-send-offsets", named="not drained")
def next_range_after_a_failure(change: Changes) -> None:
    """After a failed range the task continues with the next one, and a drain exits with 0 without the failed range."""
    change.set(worker, "_CONTINUE", lambda _: set(Status) - {Status.CRASHED})


@mutant("D7", on="direct-vanished-behind-a-commit", named="duplicate-output")
def first_time_for_a_whole_lease(change: Changes) -> None:
    """A lease treats the position as not set yet even after its first commit, when it has vanished since."""

    def transaction(old: Method, self: _PartitionWorker, *place: Any, first_time: bool, **order: Any) -> Any:  # noqa: ARG001
        return old(self, *place, first_time=self.grant.first_time, **order)

    change.wrap(_PartitionWorker, "_transaction", transaction)
