"""A recorder of a run that works, with a clock that the test moves."""

from __future__ import annotations

import pytest
from harness.recorded import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()
