"""Several drivers work on one topic, each on the partitions that it claimed; they balance themselves."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from pipeline.ownership import Claimed
from pipeline.patience import Patience
from pipeline.progress import Board, Silent
from pipeline.run import check, employ, share
from pipeline.settings import ClaimsSettings, PipelineSettings
from pipeline.shared import Shared
from pipeline.work import die, work
from protocol.claims.keeper import Keeper
from protocol.claims.member import Membership
from protocol.errors import DeadlineExceeded, KafkaFailure
from protocol.kafka.claims_log import ClaimsLog
from protocol.names import ExitCode


def run(settings: PipelineSettings, stop: threading.Event, board: Board, view: Silent) -> ExitCode:
    """
    As `pipeline.run.run`, on a fair share of the partitions; a draining run ends when all are drained, whoever did it.

    Raises:
        BrewError: refused, or nothing moved for too long.
    """
    claims = settings.share or ClaimsSettings()
    ground = check(settings.leased_within(claims))
    if stop.is_set():
        return ExitCode.DONE
    partitions = range(ground.topics[settings.input].partitions)
    keeper = Keeper(
        lambda: ClaimsLog(settings.connection, claims.claims),
        Membership(claims.name, settings.group, settings.input, tuple(partitions), claims.interval_s),
    )
    shared = share(ground, stop, board, view)
    shared.ownership = Claimed(keeper, view.tell)
    carrier, workers = employ(ground, shared)  # Spark starts before the first claim: who holds can work
    try:
        view.start()
        try:
            if _joined(keeper, shared):
                with ExitStack() as membership:
                    membership.callback(keeper.leave)
                    work(shared, carrier, workers)
                    _die_if_crashed(shared, view)  # as a kill would: nothing is given back
        finally:
            view.stop()
    finally:
        carrier.close()
    return ExitCode.DONE


def _joined(keeper: Keeper, shared: Shared) -> bool:
    """Become a member, trying again while the claims topic is out of reach; False when told to stop before."""
    patience = Patience(shared.settings)
    while not shared.stop.is_set():
        try:
            keeper.__enter__()
        except (DeadlineExceeded, KafkaFailure) as error:
            shared.view.tell(f"the claims topic is out of reach, trying again: {error}")
            shared.stop.wait(patience.failed("the claims topic is out of reach", str(error)))
        else:
            return True
    return False


def _die_if_crashed(shared: Shared, view: Silent) -> None:
    if shared.crashed:
        view.stop()
        die(shared.settings, shared.crashed)
