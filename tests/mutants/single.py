"""Scenarios with one pipeline: no fault, client library errors, crashes, retention."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from harness.fakes import Broker, FakeTransaction

from brew import range_transaction
from brew.deadline import Deadline
from brew.driver.micro_batches import LocalEngine
from brew.errors import Abortable, Fatal
from brew.fault_injection import PlannedCrash
from brew.kafka import transaction
from brew.kafka.log_reader import RangeReader
from brew.kafka.transaction import KafkaTransaction
from brew.names import CrashMode, CrashPoint
from brew.offsets import OffsetRange
from brew.outcome import Status
from brew.range_transaction import CrashedOnPurposeError, Rows, Targets
from brew.settings import Limits
from mutants.mutant import Method
from mutants.scene import Scene
from pipeline.enrichment import enricher


def calm(scene: Scene) -> None:
    """Nothing goes wrong: two partitions, headers, poison, aborted orders, markers at the end, short ranges, twice."""
    scene.create(2)
    scene.orders(12, headers=[("trace", b"7")])
    scene.orders(10, bad_every=4)
    scene.aborted(6)
    scene.mutate()
    for more in (0, 6):
        scene.orders(more)
        _undisturbed(scene, "--max-records-per-transaction", "5")
        if scene.signs:
            return


def side_by_side(scene: Scene) -> None:
    """Two partitions at once: both attempts have fenced before either continues."""
    scene.create(2, 20)
    scene.mutate()
    both, calls = threading.Barrier(2), iter(range(2))

    def locate(old: Method, *arguments: Any) -> Any:
        if next(calls, None) is not None:
            both.wait(20)
        return old(*arguments)

    scene.change.wrap(KafkaTransaction, "locate", locate)
    _undisturbed(scene)
    scene.fired.append(next(calls, None) is None)


def _undisturbed(scene: Scene, *options: str) -> None:
    """Drain, and report any fence, which is wrong without a rival."""
    fenced = scene.drain(*options).progress.totals.fenced
    if fenced:
        scene.signs.append(f"fenced: {fenced} attempts, and there is no rival")


def full_queue(scene: Scene) -> None:
    """The producer's queue holds three records."""
    three_records = {"queue.buffering.max.messages": 3}
    scene.change.wrap(transaction, "producer", lambda old, *a, **k: old(*a, **(k | three_records)))
    scene.create(1, 60)
    scene.mutate()
    scene.drain()


def failing_produce(scene: Scene) -> None:
    """One call of `produce` raises, once."""
    errors = [KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]

    def init(old: Method, self: KafkaTransaction, *arguments: Any) -> None:
        old(self, *arguments)
        produce, seventh = self.produce, iter(range(7))

        def write(*record: Any) -> None:
            if next(seventh, None) is None and errors:
                raise errors.pop()
            produce(*record)

        self.produce = write

    scene.change.wrap(KafkaTransaction, "__init__", init)
    scene.create(1, 20)
    scene.mutate()
    scene.drain()
    scene.fired.append(not errors)


def failing_send_offsets(scene: Scene) -> None:
    """The client library's first send-offsets raises, and the broker does not receive it."""
    scene.create(1, 4)
    scene.drain()
    scene.orders(20)
    scene.fail_once("send-offsets", Abortable("send-offsets: the coordinator went away"))
    scene.mutate()
    scene.drain()


def lost_answer(scene: Scene) -> None:
    """The first commit is applied, and its answer is lost."""
    scene.fail_once("commit", Fatal("commit: the answer was lost"), applied=True)
    scene.create(1, 20)
    scene.mutate()
    scene.drain()


def failing_commit(scene: Scene) -> None:
    """The first commit fails, and the broker does not receive it."""
    scene.fail_once("commit", Fatal("commit: the connection was gone"))
    scene.create(1, 20)
    scene.mutate()
    scene.drain()


def crash_after_flush(scene: Scene) -> None:
    """The pipeline dies between flush and send-offsets, and is restarted."""
    _crashing(scene, CrashPoint.AFTER_FLUSH)


def crash_after_send_offsets(scene: Scene) -> None:
    """The pipeline dies between send-offsets and commit, and is restarted."""
    _crashing(scene, CrashPoint.AFTER_SEND_OFFSETS)


def _crashing(scene: Scene, point: CrashPoint) -> None:
    """Crash and restart; more orders come in between, so that the second run always has work."""
    scene.create(1, 4)
    scene.drain()
    scene.orders(20, bad_every=4)
    scene.mutate()
    view = scene.drain("--crash-prob", "1.0", "--crash-point", point.value)
    scene.fired.append(view.statuses() == {Status.CRASHED})
    scene.orders(4)
    scene.drain()


def retention(scene: Scene) -> None:
    """Retention removes the beginning of a planned range before it is read."""
    scene.create(1, 20)
    scene.mutate()

    def clean() -> None:
        for future in scene.stage.admin.delete_records([TopicPartition(scene.stage.names.input, 0, 5)]).values():
            future.result(20)

    scene.once(RangeReader, "_seek", before=clean)
    scene.drain()


def model(scene: Scene) -> None:
    """The kernel with an in-memory broker that refuses a commit while records are queued; every crash point."""
    scene.mutate()
    enrich = enricher(Limits())
    targets = Targets("out", "dead", 0, 0)
    for point in CrashPoint:
        broker = Broker()
        for crash in (PlannedCrash(point, CrashMode.PIPELINE), None, None):
            rows = Rows([1, 2, 3], [b"gold-1"] * 3, [b'{"customer_id":"c"}'] * 3, [None] * 3, [7] * 3)
            try:
                kafka = FakeTransaction(broker)
                offered = OffsetRange("in", 0, 0, 5)
                range_transaction.transact_range(
                    [rows], offered, targets, enrich, kafka, Deadline(5), first_time=True, crash=crash
                )
            except CrashedOnPurposeError:
                continue
        if broker.sources() != [1, 2, 3]:
            scene.signs.append(f"the model's output is {broker.sources()} after {point}")
    scene.fired.append(True)


def silent_reader(scene: Scene) -> None:
    """The reader of the first ranges returns nothing, as if they contained only markers."""
    scene.create(1, 20)
    scene.mutate()
    scene.fired.append(False)

    def execute(old: Method, *arguments: Any) -> Any:
        first, scene.fired[-1] = not scene.fired[-1], True
        return {} if first else old(*arguments)

    scene.change.wrap(LocalEngine, "execute", execute)
    scene.drain()
