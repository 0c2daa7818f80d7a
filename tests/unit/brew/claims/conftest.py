"""An empty log and an empty fold for each test."""

from __future__ import annotations

import pytest
from harness.claims import Shared

from brew.claims.state import Table


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def table() -> Table:
    return Table()
