"""
The tree of all errors.

BrewError
├── UsageError            an invalid argument or setting (exit 64)
├── Refused               going on could lose or double records; names the value, the need and the setting (exit 3)
│   ├── Unreachable       no broker answered in time
│   ├── RegistryUnreachable   the Schema Registry did not answer
│   └── Denied            the brokers, or who poses as one, do not get or give trust; who asked, and what is missing
├── TransformFailed       a transformation raised something else than `brew.Reject`: its run ends (exit 3)
├── DeadlineExceeded      a wait ran out of time
└── KafkaFailure          what the client library reported, classified
    ├── Retriable         same call again, same arguments, within the deadline
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
    """Going on could lose or double records; the text says what was found, what is needed and what to do."""


class Unreachable(Refused):
    """No broker answered within the deadline."""


class RegistryUnreachable(Refused):
    """The Schema Registry did not answer; what it was asked for is tried again."""


class Denied(Refused):
    """The brokers refused this client, or are not trusted; the text names the principal and what is missing."""


class TransformFailed(BrewError):
    """A transformation raised an exception; the text names it, the function and the record."""


class DeadlineExceeded(BrewError):
    """A wait ran out of time; the text names the step."""


class KafkaFailure(BrewError):
    """An error of the client library, classified by its own three flags."""


class Retriable(KafkaFailure):
    """The same call with the same arguments may succeed."""


class Abortable(KafkaFailure):
    """The transaction has to be aborted; a new one may succeed."""


class Fenced(KafkaFailure):
    """A newer producer with the same transactional id owns the partition."""


class Fatal(KafkaFailure):
    """The producer can't be used any more."""


class ClientError(Protocol):
    """The three flags of librdkafka's error object (its manual, 'Transactional Producer')."""

    def retriable(self) -> bool: ...
    def txn_requires_abort(self) -> bool: ...
    def fatal(self) -> bool: ...
    def name(self) -> str: ...
    def str(self) -> str: ...


# The protocol calls these retriable (kafka.apache.org, "Error codes"); librdkafka's admin calls don't set the flag.
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
    # A broker that has just become leader, or lags behind the controller (KIP-320: fetch the metadata and ask again).
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_TOPIC_ID",
    "INCONSISTENT_TOPIC_ID",
}
# librdkafka maps the brokers' INVALID_PRODUCER_EPOCH and PRODUCER_FENCED to the fatal `_FENCED`.
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}


def classify(error: ClientError, step: str) -> KafkaFailure:
    """Turn a client error into one of the tree's; an error with none of the three flags is `Fatal`."""
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
