"""What the sources tell, as values; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.operate.judge.lag import Look
from pipeline.xray.model import Strip


@dataclass(frozen=True, slots=True)
class Flow:
    """One look at all input partitions; ``silent`` is what the brokers did not tell."""

    now_ms: int
    looks: tuple[Look, ...]
    silent: str | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """The last offsets of each output partition; ``missing``: the topic is not there yet."""

    topic: str
    strips: Mapping[int, Strip]
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """
    What a file of `proof` says: of one run, or of a campaign.

    ``mark`` is proven, violated or inconclusive; ``lines`` are the numbers, ``wrong`` what was found, in sentences.
    """

    mark: str
    title: str
    lines: tuple[str, ...]
    wrong: tuple[str, ...]
    written_s: float
