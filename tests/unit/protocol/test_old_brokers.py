"""Questions that older brokers can't answer end with a sentence, not with a crash."""

from __future__ import annotations

import pytest

from protocol.errors import Refused
from protocol.kafka import introspect
from protocol.kafka.introspect import Unsupported


@pytest.mark.parametrize("kind", ["UnsupportedVersionError", "IncompatibleBrokerVersion"])
def test_an_unsupported_request_is_refused_with_the_version_that_knows_it(kind: str) -> None:
    """Kafka 3.0 brought KIP-664."""
    import kafka.errors  # noqa: PLC0415 - `introspect` imports the library first, warnings silenced

    told = introspect._as_ours(getattr(kafka.errors, kind)("ListTransactions"), "list transactions")
    assert isinstance(told, Unsupported)
    assert isinstance(told, Refused)
    assert "Kafka 3.0 or later" in str(told)
    assert str(told).startswith("list transactions")
