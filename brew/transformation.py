"""What an application does with a record: the interface to the library, and its implementation for functions."""

from __future__ import annotations

import functools
import pickle
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, TransformFailed, text_of
from brew.load import load
from brew.range_transaction import Answer, Enrich, Evidence, Rows, Transform
from brew.record import NO_VALUE, NOT_JSON, TOO_LARGE, TRANSFORM_ERROR, Record, Reject, apply, takes_batches
from brew.settings import OnError, PipelineSettings

REASONS = (NO_VALUE, NOT_JSON, TOO_LARGE, TRANSFORM_ERROR)


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    How one transaction transforms its records: ``transform``, or ``enrich`` if only values change.

    ``evidence``: the header that each result carries. ``malformed``: the number of unusable records in its lookup
    table; None without a table.
    """

    enrich: Enrich | None = None
    evidence: Evidence | None = None
    malformed: int | None = None
    transform: Transform | None = None


class Transformation(Protocol):
    """
    What an application does with records. It holds only values because it is sent to the workers.

    ``whole_input_first``: read all records of a transaction before it begins, since the data that transforms them has
    to be newer than they are. ``reasons``: why it may reject records, as far as known in advance.
    """

    @property
    def whole_input_first(self) -> bool: ...

    @property
    def reasons(self) -> Sequence[str]: ...

    def ready(self, connection: Connection, group: str, timeout_s: float) -> Prepared:
        """
        Prepare one transaction; called before its first step.

        Raises:
            BrewError: the data that transforms the records is not available in time; nothing was begun.
        """
        ...

    def check(self, connection: Connection, deadline: Deadline) -> None:
        """
        Check before a run that the cluster has what the transformation needs.

        Raises:
            Refused: something is missing; says what to do.
        """
        ...

    def advice(self, reason: str) -> str:
        """Return, if all records are rejected for ``reason``, what that means and what a good record looks like."""
        ...

    def release(self, *, loading_only: bool = False) -> None:
        """Release what this process keeps for it; with ``loading_only``, cancel running loads and keep the rest."""
        ...


def transformation(settings: PipelineSettings) -> Transformation:
    """
    Return the transformation that the settings name: a class of its own, or a function of a record or of batches.

    Raises:
        UsageError: there is none, or it can't be loaded; says what was looked for, and the nearest name.
    """
    loaded = load(settings.transform, settings.spark.py_files)
    if isinstance(loaded.target, type) and hasattr(loaded.target, "ready"):
        made: Transformation = loaded.target(settings.limits, settings.profiles)
        return made
    topics = frozenset({settings.output, *settings.also_output})
    return FunctionTransformation(loaded.name, topics, settings.limits.max_bytes, settings.on_error, loaded.target)


def for_executors(made: Transformation, pickled: Callable[[Any], bytes]) -> Transformation:
    """
    Return what to send to other processes: a function becomes bytes, which each of them loads once and keeps.

    ``pickled``: serializes a function by value or by name (`brew.spark.shipping`).
    """
    if not isinstance(made, FunctionTransformation) or made.payload:
        return made
    return replace(made, function=None, payload=pickled(made.function))


@dataclass(frozen=True)
class FunctionTransformation:
    """
    A function of a `Record`, or of batches; several threads of a process may call it at the same time.

    ``topics``: the output topics, the only ones that a record may be sent to. ``max_bytes``: the limit of the smallest
    of them. ``payload``: the function as bytes, for executors.
    """

    name: str
    topics: frozenset[str]
    max_bytes: int
    on_error: OnError = OnError.END
    function: Callable[..., Any] | None = None
    payload: bytes = b""

    @property
    def whole_input_first(self) -> bool:
        return False

    @property
    def reasons(self) -> Sequence[str]:
        return REASONS

    def ready(self, connection: Connection, group: str, timeout_s: float) -> Prepared:  # noqa: ARG002 - the protocol's
        """Prepare the function as `Transformation` describes."""
        function = self.function
        if function is None:
            try:
                function = _unpickled(self.payload)
            except Exception as error:
                raise TransformFailed(
                    f"transform-failed: {self.name} can't be loaded where Spark's tasks run: {type(error).__name__}: "
                    f"{text_of(error)}; ship the module with --py-files (a .py file or a wheel), or install it there"
                ) from error
        if takes_batches(function):
            import brew.record_batches  # noqa: F401, PLC0415 - pyarrow imports slowly: not while a transaction is open

        return Prepared(transform=functools.partial(self.answers, function))

    def check(self, connection: Connection, deadline: Deadline) -> None:
        """Do nothing: a function needs nothing of the cluster."""

    def advice(self, reason: str) -> str:  # noqa: ARG002 - the protocol's
        """Return a generic sentence, because the codes are the function's own."""
        return f"{self.name} rejected them"

    def release(self, *, loading_only: bool = False) -> None:
        """Do nothing: nothing is kept."""

    def answers(self, function: Callable[..., Any], topic: str, partition: int, rows: Rows) -> list[Answer]:
        """
        Return the answer to each record.

        Raises:
            TransformFailed: the function raised and the run must end, or it sent a record to a topic that is no output.
        """
        records = [
            Record(topic, partition, offset, key, value, headers or (), timestamp)
            for offset, key, value, headers, timestamp in zip(*rows, strict=True)
        ]
        if takes_batches(function):
            from brew.record_batches import apply_batch  # noqa: PLC0415 - pyarrow, only if it is used

            try:
                answers = apply_batch(function, records)
            except (Exception, SystemExit):  # noqa: BLE001 - a batch does not show which record failed, single records do
                return [self._answer(function, record) for record in records]
            return [self._checked(answer, record) for answer, record in zip(answers, records, strict=True)]
        return [self._answer(function, record) for record in records]

    def _answer(self, function: Callable[..., Any], record: Record) -> Answer:
        try:
            answer = apply(function, record)
        except BrewError:
            raise  # not the record's fault: the transaction is repeated
        except (Exception, SystemExit) as error:
            if self.on_error is OnError.END:
                raise TransformFailed(
                    f"transform-failed: {self.name} raised {_description(error)} on {record.topic}[{record.partition}] "
                    f"offset {record.offset}; correct it and run again, or let such records become dead letters with "
                    "--on-error dead-letter"
                ) from error
            reject = Reject(TRANSFORM_ERROR, _description(error))
            reject.__cause__ = error
            return reject
        return self._checked(answer, record)

    def _checked(self, answer: Answer, record: Record) -> Answer:
        """Return the answer, or a rejection if an output is too large."""
        if isinstance(answer, Reject):
            return answer
        for output in answer:
            if output.destination is not None and output.destination not in self.topics:
                raise TransformFailed(
                    f"transform-failed: {self.name} sent {record.topic}[{record.partition}] offset {record.offset} to "
                    f"{output.destination!r}; the run's output topics are {', '.join(sorted(self.topics))}; name that "
                    f"one with --also-output {output.destination}"
                )
            size = len(output.value or b"") + len(output.key or b"")
            if output.headers:
                size += sum(len(name) + len(value or b"") for name, value in output.headers)
            if size > self.max_bytes:
                return Reject(TOO_LARGE, f"an output has {size} bytes, the limit is {self.max_bytes}")
        return answer


_loading = threading.Lock()


def _unpickled(payload: bytes) -> Callable[..., Any]:
    """Return the function, one object for all transactions of this process: it may keep what is costly to create."""
    with _loading:
        return _unpickled_once(payload)


@functools.lru_cache(maxsize=8)
def _unpickled_once(payload: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(payload)  # noqa: S301 - the driver of this run wrote it
    return function


def _description(error: BaseException) -> str:
    """Return the exception's name and text, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = text_of(error)
    return f"{type(error).__name__}{': ' if text else ''}{text[:500]}{where}"
