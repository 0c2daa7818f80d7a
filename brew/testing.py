"""
Test a transformation without Kafka and Spark: records in; outputs, drops and rejects out.

::

    def test_a_click_gets_its_domain():
        result = transform(add_domain, [record({"url": "http://a.example/b"}), record({})])
        assert [one.json()["domain"] for one in result.outputs] == ["a.example"]
        assert [one.reason for one in result.rejected] == ["no-url"]

Answers are interpreted as in a run: returning anything else is a `TypeError`, and so is a record sent to a topic that
the run does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from brew.record import Record, Reject, apply, takes_batches

TOPIC, OUTPUT = "input", "output"


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """An input that goes to the dead-letter topic, and why."""

    record: Record
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """
    The results of all inputs.

    ``outputs``: all records that are written, in order. ``by_topic``: the same, by destination (`output` if the
    function names no topic). ``dropped``: inputs without any output.
    """

    outputs: list[Record] = field(default_factory=list)
    by_topic: dict[str, list[Record]] = field(default_factory=dict)
    dropped: list[Record] = field(default_factory=list)
    rejected: list[RejectedRecord] = field(default_factory=list)


def record(
    value: Any = None,
    *,
    key: str | bytes | None = None,
    headers: Mapping[str, str | bytes | None] | None = None,
    topic: str = TOPIC,
    partition: int = 0,
    offset: int = 0,
    timestamp: int = 0,
) -> Record:
    """Create a record: bytes (or None, a tombstone) as they are, other values as JSON; key and headers as UTF-8."""
    content = value if isinstance(value, bytes | None) else orjson.dumps(value)
    pairs = tuple((name, _bytes(one)) for name, one in (headers or {}).items())
    return Record(topic, partition, offset, _bytes(key), content, pairs, timestamp)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _of_batch(function: Callable[..., Any], records: list[Record]) -> Sequence[tuple[Record, ...] | Reject]:
    """Call a function of batches as a run does: with all records, or with one at a time if that raises."""
    from brew.record_batches import apply_batch  # noqa: PLC0415 - pyarrow, only if it is used

    try:
        return apply_batch(function, records)
    except (Exception, SystemExit):  # noqa: BLE001 - raised again for the record that causes it
        return [apply(function, one) for one in records]


def transform(
    function: Callable[..., Any], records: Iterable[Record], *, also_output: Iterable[str] | None = None
) -> Result:
    """
    Call ``function`` for each record, or once for all if it is a function of batches (`brew.batches`).

    Records of one batch are numbered from offset 0 if some of them have the same offset, because it identifies them.
    ``also_output``: the topics of the run's `--also-output`; None allows any.

    Raises:
        TypeError: it returned something that a run does not accept.
        Exception: whatever the function raises except `brew.Reject`; a run would end there (`--on-error end`).
    """
    given = list(records)
    if takes_batches(function):
        if len({one.offset for one in given}) < len(given):  # as those of `record`
            given = [replace(one, offset=number) for number, one in enumerate(given)]
        answers = _of_batch(function, given)
    else:
        answers = [apply(function, value) for value in given]
    result = Result()
    allowed = None if also_output is None else {None, *also_output}
    for source, answer in zip(given, answers, strict=True):
        if isinstance(answer, Reject):
            result.rejected.append(RejectedRecord(source, answer.reason, answer.message))
        elif not answer:
            result.dropped.append(source)
        for output in () if isinstance(answer, Reject) else answer:
            if allowed is not None and output.destination not in allowed:
                raise TypeError(
                    f"{source} goes to {output.destination!r}; name that topic in also_output, and to a run"
                )
            result.outputs.append(output)
            result.by_topic.setdefault(output.destination or OUTPUT, []).append(output)
    return result
