"""Let the workers of a run work, each in a thread, and end them: drained, stopped, failed, or crashed on purpose."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import psutil

from pipeline.crash import message
from pipeline.engine import Carrier
from pipeline.outcome import Outcome
from pipeline.settings import PipelineSettings
from pipeline.shared import Shared
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka.transaction import KafkaTransaction
from protocol.names import ExitCode
from protocol.observe.phase import Phase

_GRACE_S = 4.0
_FENCE_S = 1.5
_LOOK_S = 0.01
_WATCH_S = 0.02


class Worker(Protocol):
    """Decides what is transacted next, until the run is drained or stopped."""

    def run(self) -> None: ...


def work(shared: Shared, carrier: Carrier, workers: Sequence[Worker]) -> None:
    """Run them in threads; the first error of one stops all, and leaves here."""
    errors: list[Exception] = []

    def guarded(worker: Worker) -> None:
        try:
            worker.run()
        except Exception as error:  # noqa: BLE001 - carried to the main thread
            if not shared.stop.is_set() or isinstance(error, BrewError):
                errors.append(error)
                shared.board.fatal(str(error))
            shared.stop.set()

    threads = [
        threading.Thread(target=guarded, args=[one], name=f"worker-{i}", daemon=True) for i, one in enumerate(workers)
    ]
    shared.board.phase(Phase.WORKING)
    for thread in threads:
        thread.start()
    interrupt = _awaited(shared, threads)
    shared.board.phase(Phase.STOPPING)
    if shared.stop.is_set() and not errors and not shared.crashed:
        shared.view.tell("stopping: finishing the running transactions")
    if shared.crashed:
        _let_the_others_finish(shared)
        return
    _end(shared, carrier, threads)
    if interrupt is not None:
        raise interrupt
    if errors:
        raise errors[0]
    if not shared.stop.is_set():
        shared.first.check_at_end()


def _awaited(shared: Shared, threads: list[threading.Thread]) -> BaseException | None:
    """Wait until all have ended or the run is stopped; an exception in the main thread (Ctrl-C) stops it, too."""
    try:
        while any(thread.is_alive() for thread in threads) and not shared.stop.is_set():
            shared.stop.wait(_WATCH_S)
    except BaseException as error:  # noqa: BLE001 - raised again once the transactions have ended
        shared.stop.set()
        return error
    return None


def _end(shared: Shared, carrier: Carrier, threads: list[threading.Thread]) -> None:
    """Let the threads finish their transactions; interrupt what takes too long, and fence it."""
    ended = _joined(threads, Deadline(_GRACE_S))
    if not ended:
        carrier.interrupt()
    _fence_what_is_left(shared)
    if not ended:
        _joined(threads, Deadline(_FENCE_S))


def _let_the_others_finish(shared: Shared) -> None:
    """Wait for transactions that run, or the number that a crash announces would miss what they leave in the log."""
    deadline = Deadline(shared.settings.transaction_timeout_s)
    while shared.running and not deadline.expired():
        time.sleep(_LOOK_S)


def _joined(threads: list[threading.Thread], deadline: Deadline) -> bool:
    for thread in threads:
        thread.join(deadline.remaining_s())
    return not any(thread.is_alive() for thread in threads)


def _fence_what_is_left(shared: Shared) -> None:
    """Fence the ids of ranges whose workers were interrupted or lost, so that no reader waits for the time-out."""
    if shared.replaced.is_set():  # a fence now would strike the one who works
        return
    deadline, ours = Deadline(_FENCE_S), shared.ownership.surely()
    for offered in [one for one in {**shared.lost, **shared.running}.values() if one.partition in ours]:
        kafka = KafkaTransaction(shared.transaction, offered.topic, offered.partition)
        try:
            kafka.fence(deadline)
        except BrewError as error:
            shared.view.tell(f"{offered}: its transaction stays open until the time-out: {error}")
        finally:
            kafka.close()


def die(settings: PipelineSettings, crashed: list[Outcome]) -> None:
    """Tell what the crash left behind, then kill the JVM, the workers and this process, transactions open."""
    enriched, rejected = sum(o.enriched for o in crashed), sum(o.rejected for o in crashed)
    sys.stdout.write(message(settings.crash.point, enriched, rejected) + "\n")
    sys.stdout.flush()
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(ExitCode.CRASHED_ON_PURPOSE)
