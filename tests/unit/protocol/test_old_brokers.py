"""Questions that older brokers can't answer end with a sentence, not with a crash."""

from __future__ import annotations

import pytest

from brew.errors import Refused
from brew.kafka import kafka_python
from brew.kafka.kafka_python import Unsupported


@pytest.mark.parametrize("kind", ["UnsupportedVersionError", "IncompatibleBrokerVersion"])
def test_an_unsupported_request_is_refused_with_the_version_that_knows_it(kind: str) -> None:
    """Kafka 3.0 brought KIP-664."""
    import kafka.errors  # noqa: PLC0415 - `introspect` imports the library first, warnings silenced

    told = kafka_python._to_brew_error(getattr(kafka.errors, kind)("ListTransactions"), "list transactions")
    assert isinstance(told, Unsupported)
    assert isinstance(told, Refused)
    assert "Kafka 3.0 or later" in str(told)
    assert str(told).startswith("list transactions")
