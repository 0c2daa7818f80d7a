"""Errors of the client library at the one door, also those that come wrapped."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.errors import Fenced, Retriable
from brew.kafka.clients import mapped


def test_a_fence_that_strikes_while_the_client_logs_is_still_a_fence() -> None:
    """The client calls the logger with its exception pending; Python makes a SystemError of that (seen in `flush`)."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", True))
    with pytest.raises(Fenced), mapped("produce"):
        raise SystemError("LogRecord returned a result with an exception set") from fenced


def test_a_system_error_of_somebody_else_stays_what_it_is() -> None:
    with pytest.raises(SystemError), mapped("produce"):
        raise SystemError("another one")


@pytest.mark.parametrize("code", [KafkaError.NOT_CONTROLLER, KafkaError.REQUEST_TIMED_OUT])
def test_what_passes_while_a_controller_is_elected_is_asked_again(code: int) -> None:
    """The protocol calls both retriable; the client's administrative calls bring them without the mark."""
    error = KafkaError(code)
    assert not error.retriable()
    with pytest.raises(Retriable), mapped("make topics"):
        raise KafkaException(error)
