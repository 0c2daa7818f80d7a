"""Three questions to the client's error object decide what may be done; in doubt the producer is of no more use."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from brew.errors import Abortable, Fatal, Fenced, KafkaFailure, Retriable, classify


@dataclass
class Answer:
    """librdkafka's error object."""

    code: str
    is_retriable: bool = False
    is_abortable: bool = False
    is_fatal: bool = False

    def retriable(self) -> bool:
        return self.is_retriable

    def txn_requires_abort(self) -> bool:
        return self.is_abortable

    def fatal(self) -> bool:
        return self.is_fatal

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return "what it says"


@pytest.mark.parametrize(
    ("answer", "leaf"),
    [
        (Answer("X"), Fatal),
        (Answer("X", is_fatal=True), Fatal),
        (Answer("X", is_retriable=True), Retriable),
        (Answer("X", is_abortable=True), Abortable),
        (Answer("X", is_retriable=True, is_abortable=True), Retriable),
        (Answer("_FENCED", is_retriable=True, is_abortable=True, is_fatal=True), Fenced),
        (Answer("PRODUCER_FENCED"), Fenced),
        (Answer("INVALID_PRODUCER_EPOCH", is_abortable=True), Fenced),
        (Answer("NOT_COORDINATOR"), Retriable),
        (Answer("NOT_COORDINATOR", is_abortable=True), Abortable),
        (Answer("NOT_COORDINATOR", is_fatal=True), Fatal),
    ],
)
def test_an_error_is_exactly_one_leaf_and_keeps_its_text(answer: Answer, leaf: type[KafkaFailure]) -> None:
    """Fenced first, then retriable, abortable, known to pass; what is left is fatal."""
    error = classify(answer, "send-offsets")
    assert type(error) is leaf
    assert str(error) == f"send-offsets: what it says ({answer.code})"
