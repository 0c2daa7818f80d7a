"""Changes that must break nothing, because the promise does not rest on them. If one goes red, its backup is gone."""

from __future__ import annotations

import contextlib
from typing import Any

from brew.errors import BrewError
from brew.kafka.transaction import KafkaTransaction
from brew.readers.direct import worker
from mutants.mutant import Changes, Method, mutant


@mutant("D11", on="failing-send-offsets", named="")
def abort_left_out(change: Changes) -> None:
    """A failed transaction is not aborted: closing the producer aborts it, or the next fence."""
    change.set(KafkaTransaction, "abort", lambda _: lambda *_arguments: None)


@mutant("D12", on="failing-commit", named="")
def commit_error_taken_for_done(change: Changes) -> None:
    """A failed commit is reported as done: the driver reads the committed offset and plans the range again."""

    def commit(old: Method, *arguments: Any) -> None:
        with contextlib.suppress(BrewError):
            old(*arguments)

    change.wrap(KafkaTransaction, "commit", commit)


@mutant("D14", on="calm", named="")
def library_flush_left_out(change: Changes) -> None:
    """Records are still queued when the commit is called: librdkafka's own commit flushes first."""
    change.set(KafkaTransaction, "flush", lambda _: lambda *_arguments: None)


@mutant("D1", on="direct-lease-runs-out", named="")
def lease_without_end(change: Changes) -> None:
    """A task's lease lasts a day: its further attempts are fenced, or find their range already committed."""

    def connecting(old: Method) -> Method:
        return lambda host, port, _silence_s, deadline: old(host, port, 86_400.0, deadline)

    change.set(
        worker,
        "MessageConnection",
        lambda line: type("EndlessLine", (line,), {"to": staticmethod(connecting(line.to))}),
    )
