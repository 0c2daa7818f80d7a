"""Where the brokers say no a run gives up sooner: what was taken away does not come back by itself."""

from __future__ import annotations

import time

import pytest

from brew.connection import Connection
from brew.driver.limits import GiveUpPolicy
from brew.errors import Refused
from brew.settings import PipelineSettings

DENIED = "fence: Broker: Transactional Id authorization failed (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)"


@pytest.mark.parametrize(
    ("patience_s", "detail", "until_s"),
    [(120.0, "fence: timed out (_TIMED_OUT)", 120.0), (120.0, DENIED, 10.0), (3.0, DENIED, 3.0)],
)
def test_a_no_is_waited_for_ten_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, detail: str, until_s: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    patience = GiveUpPolicy(PipelineSettings(Connection("h:1"), "in", "out", "dead", "g", patience_s=patience_s))
    patience.failed("partition 0", detail)
    now += until_s
    assert patience.failed("partition 0", detail) > 0
    now += 0.1
    with pytest.raises(Refused, match="no progress for ") as caught:
        patience.failed("partition 0", detail)
    assert detail in str(caught.value)
    assert ("after an authorization failure" in str(caught.value)) is (detail == DENIED)
