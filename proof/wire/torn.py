"""Run the scripts many times with one writer, then read the log once and judge every try."""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from proof.wire.apis import error_name
from proof.wire.judge import Place, Tally, Try, tally
from proof.wire.late import Scene, play
from proof.wire.running import WireProxy
from proof.wire.timeline import Event
from proof.wire.writers import WRITERS, PositionReader
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka import topics
from protocol.kafka.clients import READ_COMMITTED, READ_UNCOMMITTED, admin
from protocol.kafka.introspect import raw_batches
from protocol.kafka.offsets import log_offsets
from protocol.kafka.scan import scan

F11 = ("late-commit", "late-abort")
_ASK_S = 60.0
_FRAMES_KEPT = 4


@dataclass(frozen=True)
class Stage:
    """Fresh topics and a group for one experiment; ``stem`` names all three."""

    connection: Connection
    stem: str

    @property
    def source(self) -> str:
        return f"{self.stem}.in"

    @property
    def output(self) -> str:
        return f"{self.stem}.out"

    @property
    def group(self) -> str:
        return f"{self.stem}.group"

    @classmethod
    def fresh(cls, connection: Connection, word: str) -> Stage:
        """Make the topics, one partition each."""
        stage = cls(connection, f"wire-{word}-{secrets.token_hex(4)}")
        client, names = admin(connection), [stage.source, stage.output]
        topics.create(client, [topics.Wanted(name, 1, {}) for name in names], Deadline(_ASK_S))
        topics.describe_all(client, names, Deadline(_ASK_S))
        return stage

    def log(self) -> dict[str, Place]:
        """Every record of the output by its key."""
        ends = log_offsets(admin(self.connection), self.output, [0], Deadline(_ASK_S))[0]
        everything = {0: (ends.first, ends.end)}
        where = {
            (record.key() or b"").decode(): record.offset()
            for batch in scan(self.connection, self.output, everything, READ_UNCOMMITTED)
            for record in batch
        }
        seen = [
            (record.offset(), (record.key() or b"").decode())
            for batch in scan(self.connection, self.output, {0: (ends.first, ends.last_stable)}, READ_COMMITTED)
            for record in batch
        ]
        visible, copies = {at for at, _ in seen}, Counter(key for _, key in seen)
        writers: dict[int, tuple[int, int]] = defaultdict(lambda: (-1, -1))
        for one in raw_batches(self.connection, self.output, 0, ends.first, ends.end, Deadline(_ASK_S)):
            writers |= dict.fromkeys(range(one.base_offset, one.last_offset + 1), (one.producer_id, one.producer_epoch))
        return {
            key: Place(at, *writers[at], visible=at in visible, copies=max(1, copies[key])) for key, at in where.items()
        }


@dataclass(frozen=True)
class Result:
    """One writer's tries, what was counted, the frames of the first few, and how long it took in seconds."""

    writer: str
    tally: Tally
    tries: list[Try]
    log: dict[str, Place]
    frames: list[list[Event]]
    seconds: float

    @property
    def share_broken(self) -> float:
        return self.tally.broken / max(1, self.tally.tries)

    def document(self) -> dict[str, Any]:
        told = self.tally
        return {
            "writer": self.writer,
            "tries": told.tries,
            "clean": told.clean,
            "broken": told.broken,
            "inconclusive": told.inconclusive,
            "anomalies": dict(told.names),
            "late_frames": dict(told.late),
            "first": [{"try": number, **asdict(anomaly)} for number, anomaly in told.first],
            "troubles": told.troubles,
            "seconds": round(self.seconds, 2),
        }


def experiment(
    connection: Connection,
    writer: str,
    tries: int,
    scripts: Sequence[str] = F11,
    *,
    seed: int = 0,
    seen: Callable[[int], None] = lambda _: None,
) -> Result:
    """Play the scripts in turn (``seed`` says which one begins), ``tries`` in all, and judge them by the log."""
    began = time.monotonic()
    stage = Stage.fresh(connection, writer)
    done: list[Try] = []
    frames: list[list[Event]] = []
    with WireProxy(connection.bootstrap, seed=seed) as proxy:
        actor = WRITERS[writer](proxy.connection, stage.group, stage.source, stage.output)
        positions = PositionReader(connection, stage.group, stage.source)
        with closing(positions), closing(actor):
            scene = Scene(proxy, actor, positions)
            for number in range(tries):
                proxy.timeline.clear()
                done.append(play(scene, number, scripts[(seed + number) % len(scripts)]))
                if number < _FRAMES_KEPT:
                    frames.append(proxy.events())
                seen(number + 1)
        for failure in proxy.failures:
            done[-1].trouble = done[-1].trouble or failure
    log = stage.log()
    names = defaultdict(str, {one.late: error_name(one.late) for one in done if one.late is not None})
    return Result(writer, tally(done, log, names), done, log, frames, time.monotonic() - began)
