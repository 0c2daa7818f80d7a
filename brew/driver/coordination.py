"""Several drivers: one works while the others stand by, or all share the partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from brew.claims.heartbeater import ClaimedOwnership, Heartbeater, StandBy
from brew.claims.member import Membership
from brew.driver.limits import GiveUpPolicy
from brew.driver.run import check, crash_on_purpose, create_context, create_workers, run_loops
from brew.driver.run_context import Interval, PreflightResult, ProgressView, RunContext, RunProgress
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure
from brew.kafka.claims_log import ClaimsLog
from brew.names import ExitCode
from brew.observability.status import Phase
from brew.settings import ClaimsSettings, PipelineSettings
from brew.signals import Stopped, interruptible

if TYPE_CHECKING:
    from brew.driver.warm_up import WarmSpark

_POLL_S, _FAILING_S = 0.02, 60.0

Joined = TypeVar("Joined")


def run(settings: PipelineSettings, stop: threading.Event, progress: RunProgress, view: ProgressView) -> ExitCode:
    """Run as `brew.driver.run.run`, but only while this driver leads; a replaced driver stands by again."""
    stand_by = settings.stand_by or ClaimsSettings()
    name, preflight = stand_by.name, check(settings.leased_within(stand_by))
    if stop.is_set():
        return ExitCode.DONE

    warm_spark: WarmSpark | None = None
    if not preflight.settings.spark.absent:  # before claiming leadership, so that the leader can work at once
        from brew.driver.warm_up import WarmSpark  # noqa: PLC0415 - a third of a second

        warm_spark = WarmSpark(preflight.settings, preflight.compilers, view.note)
    with nullcontext() if warm_spark is None else closing(warm_spark), view:
        driver = Driver(preflight, warm_spark, stop, progress, view, name)

        def open_leadership() -> StandBy:
            return StandBy(
                lambda: ClaimsLog(settings.connection, stand_by.claims),
                group=settings.group,
                topic=settings.input,
                client_id=name,
                interval_s=stand_by.interval_s,
                # Two drivers with one name would take it from each other for ever: only a start resumes.
                resumes=not driver.has_led,
            )

        alternate(open_leadership, driver.wait, driver.work, stop, GiveUpPolicy(settings), view)
    return ExitCode.DONE


def alternate(
    open_leadership: Callable[[], AbstractContextManager[StandBy]],
    wait: Callable[[StandBy], bool],
    work_on: Callable[[StandBy], bool],
    stop: threading.Event,
    give_up: GiveUpPolicy,
    view: ProgressView,
) -> None:
    """
    Wait and work alternately until ``work_on`` returns True or ``stop`` is set. Leadership is given up after each turn:
    a driver that still has to clean up must not get it again. Raises `BrewError`: from the work, or as `joined`.
    """
    while not stop.is_set():
        with ExitStack() as turn:
            leadership = joined(turn, open_leadership, stop, give_up, view)
            if leadership is None:
                return
            give_up.succeeded()
            if not wait(leadership) or work_on(leadership):
                return


def joined(
    turn: ExitStack,
    open_claims: Callable[[], AbstractContextManager[Joined]],
    stop: threading.Event,
    give_up: GiveUpPolicy,
    view: ProgressView,
) -> Joined | None:
    """
    Join, until ``turn`` ends; retry while the claims topic is unavailable. None if the run was stopped first. Raises
    `Refused`: unavailable for longer than --patience.
    """
    while not stop.is_set():
        try:
            with interruptible():
                opened = open_claims()
                turn.push(opened)  # first, so that a signal within the next call leaves nothing behind
                return opened.__enter__()
        except Stopped:
            return None
        except (DeadlineExceeded, KafkaFailure) as error:
            turn.close()
            view.note(f"the claims topic is out of reach, trying again: {error}")
            stop.wait(give_up.failed("the claims topic is out of reach", str(error)))
    return None


@dataclass
class Driver:
    preflight: PreflightResult
    warm_spark: WarmSpark | None
    stop: threading.Event
    progress: RunProgress
    view: ProgressView
    name: str
    has_led: bool = False

    def wait(self, leadership: StandBy) -> bool:
        """Wait for leadership, reporting the current leader; False if the run was stopped."""
        announced: str | None = None
        warm, failing = False, Interval(_FAILING_S)

        def meanwhile() -> None:
            nonlocal announced, warm, failing
            if leadership.last_error is None:
                failing = Interval(_FAILING_S)
            elif failing.due():
                self.view.note(f"{self.name} can't take over, trying again: {leadership.last_error}")
            if self.warm_spark is not None:
                self.warm_spark.keep()
                if self.warm_spark.warm and announced and not warm:
                    warm = True
                    self.view.note(f"{self.name} is warm")
            other = leadership.owner if leadership.owner != self.name else None
            if other not in {None, announced}:
                announced = other
                self.view.note(f"{self.name} stands by, {announced} works")
            self.progress.phase(Phase.STANDING_BY, f"{other} works" if other else "")

        if not leadership.wait(self.stop, meanwhile):
            return False
        if self.warm_spark is not None:
            self.warm_spark.leave()
        self.view.note(f"{self.name} works" + (f", after {announced}" if announced else ""))
        return True

    def work(self, leadership: StandBy) -> bool:
        """Work while this driver leads; True if it is drained or stopped, False if it was replaced. Raises as `run`."""
        self.has_led = True
        shared = create_context(self.preflight, threading.Event(), self.progress, self.view)
        runner, workers = create_workers(shared)
        ended = threading.Event()
        watcher = threading.Thread(
            target=watch, args=[leadership, self.stop, shared, ended], name="leadership", daemon=True
        )
        watcher.start()
        try:
            run_loops(shared, runner, workers)
            _die_if_crashed(shared, self.view)  # like a kill: leadership is not given up
        except BrewError:
            if not shared.replaced.is_set():
                raise
        finally:
            ended.set()
            watcher.join()
            owner, paused = leadership.owner, leadership.paused
            leadership.leave()  # before the slow clean-up, so that the next leader can start
            runner.close()
        if shared.replaced.is_set() and not self.stop.is_set():
            reason = "was not heard for two heartbeat intervals"
            if paused:
                reason = "was paused (`brew claims release`)"
            elif owner == self.name:
                reason += ", or another driver has its --client-id"
            elif owner is not None:
                reason = f"gave way to {owner}"
            self.view.note(f"{self.name} {reason}, and stands by")
            return False
        return True


def watch(leadership: StandBy, stop: threading.Event, shared: RunContext, ended: threading.Event) -> None:
    """Stop the work when the run is stopped or leadership is lost."""
    while not ended.wait(_POLL_S):
        try:
            leads = leadership.holds()
        except Exception:  # noqa: BLE001 - the next leadership raises it, if it persists; without this thread, SIGTERM is lost
            leads = False
        if not leads:
            shared.replaced.set()
        if stop.is_set() or shared.replaced.is_set():
            shared.stop.set()


def run_sharing(
    settings: PipelineSettings, stop: threading.Event, progress: RunProgress, view: ProgressView
) -> ExitCode:
    """Run as `brew.driver.run.run`, on a share of the partitions; a drain ends when all partitions are drained."""
    claims = settings.share or ClaimsSettings()
    preflight = check(settings.leased_within(claims))
    if stop.is_set():
        return ExitCode.DONE
    partitions = range(preflight.topics[settings.input].partitions)
    heartbeater = Heartbeater(
        lambda: ClaimsLog(settings.connection, claims.claims),
        Membership(claims.name, settings.group, settings.input, tuple(partitions), claims.interval_s),
        patience_s=settings.patience_s,
    )
    shared = create_context(preflight, stop, progress, view)
    shared.ownership = ClaimedOwnership(heartbeater, view.note)
    runner, workers = create_workers(shared)  # Spark before the first claim, so that a holder can work
    with closing(runner), view, ExitStack() as membership:
        if joined(membership, lambda: heartbeater, stop, GiveUpPolicy(preflight.settings), view):
            run_loops(shared, runner, workers)
            _die_if_crashed(shared, view)  # like a kill: nothing is released
    return ExitCode.DONE


def _die_if_crashed(shared: RunContext, view: ProgressView) -> None:
    if shared.crashed:
        view.stop()
        crash_on_purpose(shared.preflight.settings, shared.crashed)
