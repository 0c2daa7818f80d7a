"""What an application does with a record: the seam between the library and applications, and functions behind it."""

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
from brew.errors import BrewError, TransformFailed
from brew.load import load
from brew.range_transaction import Answer, Enrich, Evidence, Rows, Transform
from brew.record import NO_VALUE, NOT_JSON, TOO_LARGE, TRANSFORM_ERROR, Record, Reject, apply, takes_batches
from brew.settings import OnError, PipelineSettings

REASONS = (NO_VALUE, NOT_JSON, TOO_LARGE, TRANSFORM_ERROR)


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    What one transaction transforms its records with: ``transform``, or ``enrich`` where only values change.

    ``evidence``: the header that each result carries. ``malformed``: records of the table that it looks up in which
    could not be used; None without a table.
    """

    enrich: Enrich | None = None
    evidence: Evidence | None = None
    malformed: int | None = None
    transform: Transform | None = None


class Transformation(Protocol):
    """
    What becomes of a record. Travels to the workers, so it holds values only.

    ``whole_input_first``: all records of a transaction are read before it begins, since what they are transformed with
    has to be newer than they are. ``reasons``: why it may reject records, as far as that is known beforehand.
    """

    @property
    def whole_input_first(self) -> bool: ...

    @property
    def reasons(self) -> Sequence[str]: ...

    def ready(self, connection: Connection, group: str, timeout_s: float) -> Prepared:
        """
        Prepare one transaction; called before its first step.

        Raises:
            BrewError: what the records are transformed with can't be had in time; nothing was begun.
        """
        ...

    def check(self, connection: Connection, deadline: Deadline) -> None:
        """
        Look before a run whether the cluster has what the transformation needs.

        Raises:
            Refused: something is missing; says what to do.
        """
        ...

    def advice(self, reason: str) -> str:
        """Where all records are rejected for ``reason``: what that says of them, and what a good one looks like."""
        ...

    def release(self, *, loading_only: bool = False) -> None:
        """Let go of what this process keeps for it; ``loading_only``: give up loads that run, and keep the rest."""
        ...


def transformation(settings: PipelineSettings) -> Transformation:
    """
    The transformation that the settings name: a class that is one, or a function of a record or of batches.

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
    What travels to other processes: a function as bytes, so that each of them loads it once, and keeps its state.

    ``pickled``: writes a function down by value or by name (`brew.spark.shipping`).
    """
    if not isinstance(made, FunctionTransformation) or made.payload:
        return made
    return replace(made, function=None, payload=pickled(made.function))


@dataclass(frozen=True)
class FunctionTransformation:
    """
    A function of a `Record`, or of batches; several threads of a process may call it at once.

    ``topics``: the output topics, the only ones that a record may be sent to. ``max_bytes``: what the smallest of them
    holds. ``payload``: the function on its way to executors.
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
        """As `Transformation` says."""
        function = self.function
        if function is None:
            try:
                function = _unpickled(self.payload)
            except Exception as error:
                raise TransformFailed(
                    f"transform-failed: {self.name} can't be loaded where Spark's tasks run: {type(error).__name__}: "
                    f"{error}; ship the module with --py-files (a .py file or a wheel), or install it there"
                ) from error
        if takes_batches(function):
            import brew.record_batches  # noqa: F401, PLC0415 - pyarrow takes its time: not while a transaction is open

        return Prepared(transform=functools.partial(self.answers, function))

    def check(self, connection: Connection, deadline: Deadline) -> None:
        """Nothing of the cluster is needed."""

    def advice(self, reason: str) -> str:  # noqa: ARG002 - the protocol's
        """The codes are the function's own."""
        return f"{self.name} rejected them"

    def release(self, *, loading_only: bool = False) -> None:
        """Nothing is kept."""

    def answers(self, function: Callable[..., Any], topic: str, partition: int, rows: Rows) -> list[Answer]:
        """
        What becomes of each record.

        Raises:
            TransformFailed: the function raised, and the run is to end then; or it sent a record to a topic of no run.
        """
        records = [
            Record(topic, partition, offset, key, value, headers or (), timestamp)
            for offset, key, value, headers, timestamp in zip(*rows, strict=True)
        ]
        if takes_batches(function):
            from brew.record_batches import apply_batch  # noqa: PLC0415 - pyarrow, for who uses it

            try:
                answers = apply_batch(function, records)
            except Exception:  # noqa: BLE001 - which record it was, a batch does not tell: each alone does
                return [self._answer(function, record) for record in records]
            return [self._checked(answer, record) for answer, record in zip(answers, records, strict=True)]
        return [self._answer(function, record) for record in records]

    def _answer(self, function: Callable[..., Any], record: Record) -> Answer:
        try:
            answer = apply(function, record)
        except BrewError:
            raise  # no fault of the record: the transaction is tried again
        except (Exception, SystemExit) as error:
            if self.on_error is OnError.END:
                raise TransformFailed(
                    f"transform-failed: {self.name} raised {_told(error)} on {record.topic}[{record.partition}] offset "
                    f"{record.offset}; correct it and run again, or let such records become dead letters with "
                    "--on-error dead-letter"
                ) from error
            reject = Reject(TRANSFORM_ERROR, _told(error))
            reject.__cause__ = error
            return reject
        return self._checked(answer, record)

    def _checked(self, answer: Answer, record: Record) -> Answer:
        """The answer, if the output topics take it."""
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
    """The function, the same one for all transactions of this process: it may keep what is costly to make."""
    with _loading:
        return _unpickled_once(payload)


@functools.lru_cache(maxsize=8)
def _unpickled_once(payload: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(payload)  # noqa: S301 - the driver of this run wrote it
    return function


def _told(error: BaseException) -> str:
    """The exception, and the line that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text[:500]}{where}"
