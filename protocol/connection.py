"""Where a cluster is; a value that every part may carry without touching a client library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Connection:
    """The bootstrap servers, and librdkafka settings (its own dotted names) that every client gets on top."""

    bootstrap: str
    properties: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)
