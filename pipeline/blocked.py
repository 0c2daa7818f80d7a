"""Tell who holds back the last stable offset of the input."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.progress import Silent
from pipeline.settings import PipelineSettings
from protocol.deadline import Deadline

_ASK_S = 5.0


def tell_who_blocks(settings: PipelineSettings, partitions: Sequence[int], view: Silent) -> None:
    """One note per open transaction; telling is a courtesy, so a broker that can't answer stops nothing."""
    # A third of the start of a run without Spark, and hardly ever needed.
    from protocol.kafka import introspect  # noqa: PLC0415

    try:
        found = introspect.open_transactions(settings.connection, settings.input, partitions, Deadline(_ASK_S))
    except Exception as error:  # noqa: BLE001 - brokers before 3.0 can't answer; the run goes on
        view.tell(f"partitions {list(partitions)} are blocked; by whom is not known: {error}")
        return
    for transaction in found:
        age = "" if transaction.age_s is None else f", open for {transaction.age_s:.0f} s"
        named = transaction.transactional_id
        who = f"transactional id {named!r}" if named else "a transaction whose name takes Describe on transactional ids"
        view.tell(
            f"{settings.input}[{transaction.partition}] is blocked at offset {transaction.first_offset} by "
            f"{who} (producer {transaction.producer_id}, "
            f"epoch {transaction.producer_epoch}{age}); going on when it ends"
        )
