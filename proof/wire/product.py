"""Late frames against the pipeline itself, behind the wire proxy."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from proof.campaign.cell import Cell, nothing
from proof.campaign.cluster import ExternalCluster
from proof.campaign.programs import Programs
from proof.campaign.stage import CellEnvironment
from proof.wire.codec import Api, error_name
from proof.wire.proxy import WireProxy
from proof.wire.rules import NO_DELAY, NetworkConditions, Rule

_RANGE, _SPARE = 20, 50  # orders of a transaction, transactions
CAUGHT_S = 60.0
_PROGRAM_S = 300.0


@contextmanager
def between(stage: CellEnvironment, shape: NetworkConditions = NO_DELAY) -> Iterator[WireProxy]:
    """Within the block, writers reach the brokers through the proxy; readers and the checker do not."""
    with WireProxy(stage.cluster.bootstrap, shape=shape, seed=stage.seed) as proxy:
        stage.bootstrap = proxy.bootstrap
        try:
            yield proxy
            stage.stop_writers()
        finally:
            stage.bootstrap = stage.cluster.bootstrap
            stage.doubts += [f"the proxy could not read a frame: {failure}" for failure in proxy.failures]


class LateFrame(NamedTuple):
    """A frame that arrived too late: when, the broker's answer, and by how many epochs."""

    released_at: float
    answer: str
    epochs_behind: int


def deliver_late(proxy: WireProxy, api: Api, transactional_id: str) -> LateFrame:
    """
    Hold a frame, cut its connection, let the next transaction of the same id write, release the frame into it.

    A broker can't tell a late frame from a new one unless the epoch differs; ours changes with every transaction.
    """
    committed = True if api is Api.END_TXN else None
    late = proxy.add(Rule(api, transactional_id=transactional_id, committed=committed, cut=True))
    caught = late.caught(Deadline(CAUGHT_S))
    # The first of these frames belongs to the same attempt, unless that one is past it.
    nth = 2 if api is Api.PRODUCE else 1
    inside = proxy.add(Rule(Api.ADD_OFFSETS_TO_TXN, transactional_id=transactional_id, nth=nth))
    try:
        following = inside.caught(Deadline(CAUGHT_S))
        released_at = time.time()
        late.release()
        error = late.answered(Deadline(CAUGHT_S)).error
    finally:
        proxy.remove(inside)
        proxy.remove(late)
    answer = "nothing" if error is None else error_name(error)
    return LateFrame(released_at, answer, following.details.epoch - caught.details.epoch)


@dataclass
class ProductResult:
    """The replies to the late frames, how many epochs late they were, and the checker's report on the run."""

    api: str
    tries: int
    late: Counter[str] = field(default_factory=Counter)
    epochs_behind: Counter[int] = field(default_factory=Counter)
    report: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The checker's verdict; if it is `proven`, `inconclusive` unless every late frame was refused."""
        verdict = str(self.report.get("verdict", "inconclusive"))
        if verdict != "proven":
            return verdict
        refused = self.tries - self.late[error_name(0)]
        whole = sum(self.late.values()) == self.tries == refused and not self.trouble
        return "proven" if whole else "inconclusive"

    def document(self) -> dict[str, Any]:
        asked = {"writer": "pipeline", "api": self.api, "tries": self.tries, "verdict": self.verdict}
        late = {"late_frames": dict(self.late), "epochs_behind": dict(self.epochs_behind)}
        found = {"counts": self.report.get("counts", {}), "anomalies": self.report.get("totals", {})}
        return {**asked, **late, **found, "trouble": self.trouble, "seconds": round(self.seconds, 2)}


def against_pipeline(connection: Connection, tries: int, api: Api = Api.END_TXN) -> ProductResult:
    """
    Run `python -m pipeline run --master none --follow` through the proxy, and deliver one frame per try too late.

    After the tries, another run processes the remaining orders, and the checker reads everything.
    """
    began, result = time.monotonic(), ProductResult(api.title, tries)
    cell = Cell("wire-pipeline", "F11", "late frames", "writer", "next transaction", nothing, partitions=1)
    with tempfile.TemporaryDirectory(prefix="brew-wire-") as folder, Programs(Path(folder)) as programs:
        cluster = ExternalCluster(connection.bootstrap)
        stage = CellEnvironment(cell, 0, cluster, Path(folder), programs, Deadline(_PROGRAM_S))
        stage.make_topics()
        stage.orders(_RANGE * (2 * tries + _SPARE))
        with between(stage) as proxy:
            stage.writer("--follow", "--max-records-per-transaction", str(_RANGE))
            try:
                for _ in range(tries):
                    late = deliver_late(proxy, api, stage.names.transactional_id(0))
                    result.late[late.answer] += 1
                    result.epochs_behind[late.epochs_behind] += 1
            except BrewError as error:
                result.trouble = str(error)
        result.trouble = result.trouble or "; ".join(stage.doubts)
        stage.deadline = Deadline(_PROGRAM_S)
        stage.drain()
        result.report = stage.verified()
        stage.forget()
    result.seconds = time.monotonic() - began
    return result
