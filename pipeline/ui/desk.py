"""All sources at work, and the view of what they told last; whoever shows it asks here and never Kafka itself."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self, cast

from pipeline.preflight.finding import Finding
from pipeline.ui.asking import Answer, Asker
from pipeline.ui.gather import Answers, Memory, gather
from pipeline.ui.settings import OWN_STATUS, LiveSettings, checked_address
from pipeline.ui.sources import Flows, OwnStatus, ProofOf, StatusOf, Tails, findings
from pipeline.ui.told import Flow, Proof, Tail
from pipeline.ui.view import Names, View
from protocol.deadline import Deadline
from protocol.observe.status import Status

_TAIL_EVERY = 2
_PROOF_EVERY_S = 2.0
_PREFLIGHT_EVERY_S = 60.0
_PREFLIGHT_PATIENCE_S = 40.0
_LEAVE_S = 0.5


class Desk:
    """
    One asker per source, however many look; all of them end with the block.

    `view` is called by one thread at a time: it feeds what the looks before have left.
    """

    def __init__(self, settings: LiveSettings) -> None:
        run, every_s, patience_s = settings.run, settings.interval_s, settings.patience_s
        self._names = Names(run.group, run.input, run.output, run.connection.bootstrap)
        self._tail_offsets = settings.tail
        flows, tails = Flows(run, ages=not settings.statuses), Tails(run.connection, run.output, settings.tail)
        self._flow: Asker[Flow] = Asker("flow", flows.ask, every_s, patience_s, flows.close)
        self._tail: Asker[Tail] = Asker("tail", tails.ask, _TAIL_EVERY * every_s, patience_s)
        self._statuses: list[Asker[Status]] = [
            Asker(url, StatusOf(url).ask, every_s, patience_s) for url in map(checked_address, settings.statuses)
        ]
        self._own: Asker[Status | None] | None = None
        if not settings.statuses:
            self._own = Asker(OWN_STATUS, OwnStatus(OWN_STATUS, run).ask, every_s, patience_s)
        self._proof: Asker[Proof] | None = None
        if settings.proof is not None:
            self._proof = Asker("proof", ProofOf(settings.proof).ask, _PROOF_EVERY_S, patience_s)
        self._preflight: Asker[list[Finding]] = Asker(
            "preflight", lambda _deadline: findings(run), _PREFLIGHT_EVERY_S, _PREFLIGHT_PATIENCE_S
        )
        self._memory = Memory()

    def _askers(self) -> list[Asker[Any]]:
        found: list[Asker[Any]] = [self._flow, self._tail, self._preflight, *self._statuses]
        return [*found, *(one for one in (self._own, self._proof) if one is not None)]

    def _told(self) -> tuple[Answer[Status], ...]:
        """What running programs told; the one on this machine only where there is one."""
        if self._own is None:
            return tuple(one.answer for one in self._statuses)
        own = self._own.answer
        return () if own.value is None else (cast("Answer[Status]", own),)

    def view(self) -> View:
        """What is known now."""
        answers = Answers(
            self._flow.answer,
            self._tail.answer,
            self._told(),
            None if self._proof is None else self._proof.answer,
            self._preflight.answer,
        )
        now_ms = int(time.time() * 1000)
        return gather(self._names, answers, self._memory, time.monotonic(), now_ms, self._tail_offsets)

    def __enter__(self) -> Self:
        for one in self._askers():
            one.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._askers():
            one.stop()
        deadline = Deadline(_LEAVE_S)
        for one in self._askers():
            one.leave(deadline)
