"""
The tree of all errors.

BrewError
├── UsageError            an invalid argument or setting (exit 64)
├── Refused               going on could lose or duplicate records; names value, need and setting (exit 3)
│   ├── Unreachable       no broker answered in time
│   ├── RegistryUnreachable   the Schema Registry did not answer
│   └── Denied            no trust between the client and the brokers; names the principal and what is missing
├── TransformFailed       a transformation raised something other than `brew.Reject`: its run ends (exit 3)
├── DeadlineExceeded      a wait ran out of time
└── KafkaFailure          what the client library reported, classified
    ├── Retriable         repeat the same call with the same arguments, within the deadline
    ├── Abortable         abort the transaction, give the range back
    ├── Fenced            a newer holder of the transactional id owns the partition
    └── Fatal             destroy the producer, give the range back (also everything unclassified)
"""

from __future__ import annotations

from typing import Protocol


class BrewError(Exception):
    """Root of all errors that this library raises on purpose."""


class UsageError(BrewError):
    """An invalid argument or setting."""


class Refused(BrewError):
    """Going on could lose or duplicate records; the text says what was found, what is needed and what to do."""


class Unreachable(Refused):
    """No broker answered within the deadline."""


class RegistryUnreachable(Refused):
    """The Schema Registry did not answer; the request can be repeated."""


class Denied(Refused):
    """The brokers refused this client, or are not trusted; the text names the principal and what is missing."""


class TransformFailed(BrewError):
    """A transformation raised an exception; the text names the exception, the function and the record."""


class DeadlineExceeded(BrewError):
    """A wait ran out of time; the text names the step."""


class KafkaFailure(BrewError):
    """An error of the client library, classified by the library's own three flags."""


class Retriable(KafkaFailure):
    """The same call with the same arguments may succeed."""


class Abortable(KafkaFailure):
    """The transaction must be aborted; a new one may succeed."""


class Fenced(KafkaFailure):
    """A newer producer with the same transactional id owns the partition."""


class Fatal(KafkaFailure):
    """The producer can no longer be used."""


class ClientError(Protocol):
    """The three flags of librdkafka's error object (its manual, 'Transactional Producer')."""

    def retriable(self) -> bool: ...
    def txn_requires_abort(self) -> bool: ...
    def fatal(self) -> bool: ...
    def name(self) -> str: ...
    def str(self) -> str: ...


# The protocol defines these as retriable (kafka.apache.org, "Error codes"); librdkafka's admin calls set no flag.
_PASSING = {
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "OFFSET_NOT_AVAILABLE",
    "NOT_CONTROLLER",
    "REQUEST_TIMED_OUT",
    "KAFKA_STORAGE_ERROR",
    # A broker that has just become leader, or lags behind the controller (KIP-320: refresh the metadata and retry).
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_TOPIC_ID",
    "INCONSISTENT_TOPIC_ID",
}
# librdkafka maps the brokers' INVALID_PRODUCER_EPOCH and PRODUCER_FENCED to the fatal `_FENCED`.
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}


def classify(error: ClientError, step: str) -> KafkaFailure:
    """Convert a client error to one of this tree; an error with none of the three flags is `Fatal`."""
    text = f"{step}: {error.str()} ({error.name()})"
    if error.name() in _FENCED:
        return Fenced(text)
    if error.retriable():
        return Retriable(text)
    if error.txn_requires_abort():
        return Abortable(text)
    if error.name() in _PASSING and not error.fatal():
        return Retriable(text)
    return Fatal(text)


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: each lone surrogate is replaced."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def text_of(error: BaseException) -> str:
    """Return the text of an exception that is not ours, as UTF-8 can encode it; its `__str__` may raise."""
    try:
        return encodable(str(error))
    except (Exception, SystemExit) as another:  # noqa: BLE001 - anybody's code
        return f"(no text: its __str__ raised {type(another).__name__})"
