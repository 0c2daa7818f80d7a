"""What everything that works in one run shares."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.breaker import FirstRecords
from pipeline.crash import Dice
from pipeline.every import Every
from pipeline.outcome import Outcome
from pipeline.ownership import Everything, Ownership
from pipeline.progress import Board, Silent
from pipeline.settings import PipelineSettings
from protocol.kafka.topics import Topic
from protocol.kafka.transaction import TransactionSettings
from protocol.position import OffsetRange

_MEMBERS_S = 5.0


@dataclass
class Shared:
    """
    ``targets`` are input, output and dead-letter topic by name, ``goals`` where a draining run ends (partition ->
    offset; None follows for ever), ``running`` what may have a transaction open now (partition -> range). ``replaced``:
    another driver works now, and what is left open is that one's to fence. ``lost``: ranges whose worker is gone: their
    transactions may be open until the next attempt fences them. ``members_due``: to ask who has joined.
    """

    settings: PipelineSettings
    targets: Mapping[str, Topic]
    stop: threading.Event
    board: Board
    view: Silent
    goals: Mapping[int, int] | None
    dead_letter_max_bytes: int
    transaction: TransactionSettings
    dice: Dice
    crashed: list[Outcome] = field(default_factory=list)
    running: dict[int, OffsetRange] = field(default_factory=dict)
    lost: dict[int, OffsetRange] = field(default_factory=dict)
    replaced: threading.Event = field(default_factory=threading.Event)
    ownership: Ownership = field(default_factory=Everything)
    first: FirstRecords = field(init=False)
    members_due: Every = field(default_factory=lambda: Every(_MEMBERS_S))

    def __post_init__(self) -> None:
        self.first = FirstRecords(self.settings.max_rejected)
