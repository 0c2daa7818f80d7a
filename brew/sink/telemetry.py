"""A sink's telemetry while a query runs: `/status`, metrics and probes, like those of the pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING

from brew.attempt import COMMIT
from brew.connection import Connection
from brew.errors import BrewError, Fenced, UsageError
from brew.names import SinkTransactionalId
from brew.observability.counters import Ended, Ending
from brew.observability.health import Bounds
from brew.observability.recorder import Recorder, Subject
from brew.observability.status import Phase, Topics
from brew.sink.batch import Result, Status

if TYPE_CHECKING:
    from brew.observability.server import Probes

_NO_LIMIT = Bounds(inf, inf, inf)
"""No limit makes a sink unhealthy: Spark calls it only when there is data, and computing a batch may take hours."""


class Telemetry:
    """
    Reports the progress of a sink's batches to a recorder.

    The recorder's one partition is the position: its offsets are batch ids, and one remains while a batch is in
    progress. A batch that was already written counts as refused, since nothing was written; an error that ends the
    query is fatal until the next batch comes.
    """

    def __init__(self, name: str, position_topic: str, topic: str | None, connection: Connection) -> None:
        self._place, self._connection = (position_topic, 0), connection
        self._id = str(SinkTransactionalId(name, position_topic))
        self.recorder = Recorder(Subject("sink", name, Topics("", topic), connection.bootstrap), _NO_LIMIT)
        self.recorder.polled([self._place])
        self.recorder.phase(Phase.WORKING)

    def serve(self, port: int, host: str) -> Probes:
        """
        Answer probes, `/metrics` and `/status` until the server is closed.

        Raises:
            UsageError: the port is taken, or the address is not one of this machine's.
        """
        from brew.observability.server import Probes, Producers  # noqa: PLC0415 - only with probes
        from brew.observability.settings import ProbeSettings  # noqa: PLC0415 - the same

        try:
            return Probes(ProbeSettings(host, port, asked=True), self.recorder, Producers.of(self._connection))
        except UsageError as error:
            raise UsageError(
                f"probe_port is {port}, probe_host {host!r}: {error.__cause__}; name another, port 0 is any free one"
            ) from error

    @contextlib.contextmanager
    def batch(self, batch_id: int) -> Iterator[None]:
        """Record a batch as in progress during the block."""
        self.recorder.phase(Phase.WORKING)
        self.recorder.surveyed(self._place, batch_id, batch_id + 1, batch_id + 1)
        try:
            yield
        except BrewError as error:
            self.recorder.fatal(str(error))
            raise

    def attempt(self, batch_id: int, attempt: Callable[[], Result]) -> Result:
        """Make an attempt at a batch, and record how it ended; an exception is Spark's or the query's own."""
        self.recorder.begun(self._place)
        began, began_at, result = time.monotonic(), time.time(), Result(Status.FAILED, detail="the query failed")
        try:
            result = attempt()
        finally:
            self._ended(batch_id, result, began_at, time.monotonic() - began)
        return result

    def _ended(self, batch_id: int, result: Result, began_at: float, seconds: float) -> None:
        ending, rows = _ending(result), result.rows if result.status is Status.WRITTEN else 0
        topic, partition = self._place
        start, until, txn_id, detail = batch_id, batch_id + 1, self._id, result.detail
        self.recorder.ended(
            Ended(topic, partition, ending, start, until, rows, {}, seconds, result.steps, began_at, txn_id, detail)
        )
        if result.status is Status.ALREADY_OUT:
            self.recorder.moved(self._place, batch_id + 1)


def _ending(result: Result) -> Ending:
    match result.status:
        case Status.WRITTEN:
            return Ending.COMMITTED
        case Status.ALREADY_OUT | Status.REFUSED:
            return Ending.REFUSED
        case Status.FAILED if result.detail.startswith(f"{Fenced.__name__}: "):
            return Ending.FENCED
        case Status.FAILED | Status.BEHIND:  # the next attempt's locate shows whether a failed commit was applied
            return Ending.INDEFINITE if COMMIT in result.steps else Ending.ABORTED
