"""A recorder of a run that works, with a clock that the test moves."""

from __future__ import annotations

import pytest
from harness.recorded import TimedRecorder


@pytest.fixture
def scene() -> TimedRecorder:
    return TimedRecorder()
