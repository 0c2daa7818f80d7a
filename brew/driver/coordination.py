"""Several drivers: one works while the others stand by, or they share the partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brew.claims.heartbeater import Heartbeater, StandBy
from brew.claims.member import Membership
from brew.driver.limits import GiveUpPolicy
from brew.driver.ownership import ClaimedOwnership
from brew.driver.progress import ProgressView, RunProgress
from brew.driver.run import PreflightResult, check, crash_on_purpose, create_context, create_workers, run_loops
from brew.driver.run_context import RunContext
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure
from brew.kafka.claims_log import ClaimsLog
from brew.names import ExitCode
from brew.observability.status import Phase
from brew.settings import ClaimsSettings, PipelineSettings

if TYPE_CHECKING:
    from brew.driver.warm_up import WarmSpark

_POLL_S = 0.02


class Leadership(Protocol):
    """What `brew.claims.heartbeater.StandBy` offers."""

    @property
    def owner(self) -> str | None: ...
    def wait(self, stop: threading.Event, meanwhile: Callable[[], None] = ...) -> bool: ...
    def holds(self) -> bool: ...
    def leave(self) -> None: ...


def run(settings: PipelineSettings, stop: threading.Event, board: RunProgress, view: ProgressView) -> ExitCode:
    """
    As `brew.driver.run.run`, but only while no other driver works; one that was replaced waits again.

    Raises:
        BrewError: refused, or nothing moved for too long.
    """
    stand_by = settings.stand_by or ClaimsSettings()
    name, ground = stand_by.name, check(settings.leased_within(stand_by))
    if stop.is_set():
        return ExitCode.DONE

    def open_seat() -> StandBy:
        return StandBy(
            lambda: ClaimsLog(settings.connection, stand_by.claims),
            group=settings.group,
            topic=settings.input,
            client_id=name,
            interval_s=stand_by.interval_s,
        )

    warmth = _start_spark(ground, view)
    try:
        view.start()
        try:
            driver = Driver(ground, warmth, stop, board, view, name)
            alternate(open_seat, driver.wait, driver.work, stop, GiveUpPolicy(settings), view)
        finally:
            view.stop()
    finally:
        if warmth is not None:
            warmth.close()
    return ExitCode.DONE


def _start_spark(ground: PreflightResult, view: ProgressView) -> WarmSpark | None:
    """Before the seat is asked for: who has it can work."""
    if ground.settings.spark.absent:
        return None
    from brew.driver.warm_up import WarmSpark  # noqa: PLC0415 - a third of a second

    return WarmSpark(ground.settings, ground.compilers, view.tell)


def alternate(
    open_seat: Callable[[], AbstractContextManager[Leadership]],
    wait: Callable[[Leadership], bool],
    work_on: Callable[[Leadership], bool],
    stop: threading.Event,
    patience: GiveUpPolicy,
    view: ProgressView,
) -> None:
    """
    Wait and work by turns until ``work_on`` says that all is done, or ``stop`` is set.

    The seat is left after each turn: who still has to clean up must not be given it.

    Raises:
        BrewError: what the work raised, or the claims topic was out of reach for longer than --patience.
    """
    while not stop.is_set():
        with ExitStack() as turn:
            try:
                seat = turn.enter_context(open_seat())
            except (DeadlineExceeded, KafkaFailure) as error:
                view.tell(f"the claims topic is out of reach, trying again: {error}")
                stop.wait(patience.failed("the claims topic is out of reach", str(error)))
                continue
            patience.good()
            if not wait(seat) or work_on(seat):
                return


@dataclass
class Driver:
    """One driver's turns: ``wait`` for the seat, then ``work``."""

    ground: PreflightResult
    warm_spark: WarmSpark | None
    stop: threading.Event
    board: RunProgress
    view: ProgressView
    name: str

    def wait(self, seat: Leadership) -> bool:
        """Tell who works until it is this one; False when it was told to stop."""
        told: str | None = None
        warm = False

        def meanwhile() -> None:
            nonlocal told, warm
            if self.warm_spark is not None:
                self.warm_spark.keep()
                if self.warm_spark.warm and told and not warm:
                    warm = True
                    self.view.tell(f"{self.name} is warm")
            if seat.owner not in {None, told, self.name}:
                told = seat.owner
                self.view.tell(f"{self.name} stands by, {told} works")
            self.board.phase(Phase.STANDING_BY, f"{told} works" if told else "")

        if not seat.wait(self.stop, meanwhile):
            return False
        if self.warm_spark is not None:
            self.warm_spark.leave()
        self.view.tell(f"{self.name} works" + (f", after {told}" if told else ""))
        return True

    def work(self, seat: Leadership) -> bool:
        """
        Work while the seat is ours; True when there is nothing to wait for: drained, or told to stop.

        Raises:
            BrewError: refused, or nothing moved for too long.
        """
        shared = create_context(self.ground, threading.Event(), self.board, self.view)
        carrier, workers = create_workers(
            self.ground, shared, None if self.warm_spark is None else self.warm_spark.context
        )
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=[seat, self.stop, shared, ended], name="seat", daemon=True)
        watcher.start()
        try:
            run_loops(shared, carrier, workers)
            if shared.crashed:
                self.view.stop()
                crash_on_purpose(self.ground.settings, shared.crashed)  # as a kill would: the seat is not left
        except BrewError:
            if not shared.replaced.is_set():
                raise
        finally:
            ended.set()
            watcher.join()
            owner = seat.owner
            seat.leave()  # before the rest, which takes its time: the next one may begin
            carrier.close()
        if shared.replaced.is_set() and not self.stop.is_set():
            why = "was not heard for two heartbeat intervals" if owner in {None, self.name} else f"gave way to {owner}"
            self.view.tell(f"{self.name} {why}, and stands by")
            return False
        return True


def watch(seat: Leadership, stop: threading.Event, shared: RunContext, ended: threading.Event) -> None:
    """Stop the work when everything stops, or when the seat is lost."""
    while not ended.wait(_POLL_S):
        if not _is_leader(seat):
            shared.replaced.set()
        if stop.is_set() or shared.replaced.is_set():
            shared.stop.set()


def _is_leader(seat: Leadership) -> bool:
    try:
        return seat.holds()
    except BrewError:  # leaves from the next seat, or not at all
        return False


def run_sharing(settings: PipelineSettings, stop: threading.Event, board: RunProgress, view: ProgressView) -> ExitCode:
    """
    As `brew.driver.run.run`, on a fair share of the partitions; a drain ends when all are drained, whoever did it.

    Raises:
        BrewError: refused, or nothing moved for too long.
    """
    claims = settings.share or ClaimsSettings()
    ground = check(settings.leased_within(claims))
    if stop.is_set():
        return ExitCode.DONE
    partitions = range(ground.topics[settings.input].partitions)
    keeper = Heartbeater(
        lambda: ClaimsLog(settings.connection, claims.claims),
        Membership(claims.name, settings.group, settings.input, tuple(partitions), claims.interval_s),
    )
    shared = create_context(ground, stop, board, view)
    shared.ownership = ClaimedOwnership(keeper, view.tell)
    carrier, workers = create_workers(ground, shared)  # Spark starts before the first claim: who holds can work
    try:
        view.start()
        try:
            if _joined(keeper, shared):
                with ExitStack() as membership:
                    membership.callback(keeper.leave)
                    run_loops(shared, carrier, workers)
                    _die_if_crashed(shared, view)  # as a kill would: nothing is given back
        finally:
            view.stop()
    finally:
        carrier.close()
    return ExitCode.DONE


def _joined(keeper: Heartbeater, shared: RunContext) -> bool:
    """Become a member, trying again while the claims topic is out of reach; False when told to stop before."""
    patience = GiveUpPolicy(shared.settings)
    while not shared.stop.is_set():
        try:
            keeper.__enter__()
        except (DeadlineExceeded, KafkaFailure) as error:
            shared.view.tell(f"the claims topic is out of reach, trying again: {error}")
            shared.stop.wait(patience.failed("the claims topic is out of reach", str(error)))
        else:
            return True
    return False


def _die_if_crashed(shared: RunContext, view: ProgressView) -> None:
    if shared.crashed:
        view.stop()
        crash_on_purpose(shared.settings, shared.crashed)
