"""What driver and holders say to each other, as values; a holder is the task that holds partitions on one slot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.outcome import Outcome, Status
from pipeline.ports import Targets
from pipeline.settings import CrashSettings, DirectSettings, Limits, ProfilesSettings
from protocol.kafka.transaction import TransactionSettings

Message = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """
    All that a holder needs before its first grant; travels to the executors, so it holds values only.

    ``watched``: somebody wants to hear of each transaction when it begins, too; ``traced``: spans are made of them.
    """

    host: str
    port: int
    token: str
    topic: str
    transaction: TransactionSettings
    limits: Limits
    direct: DirectSettings
    crash: CrashSettings
    max_records: int
    journal: str | None = None
    profiles: ProfilesSettings | None = None
    watched: bool = False
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """
    One partition, from ``start`` on; up to ``goal``, or for ever.

    ``first_time``: there is no committed offset, and nothing came out. ``spared``: no crash on purpose strikes the
    first transaction, or a run whose workers die of it could not heal.
    """

    partition: int
    start: int
    targets: Targets
    goal: int | None = None
    first_time: bool = False
    spared: bool = False


def granting(grant: Grant) -> Message:
    return {"grant": asdict(grant)}


def granted(message: Message) -> Grant | None:
    """The grant that a message holds, if it holds one."""
    found = message.get("grant")
    return None if found is None else Grant(**{**found, "targets": Targets(**found["targets"])})


def beginning(partition: int) -> Message:
    """A transaction begins."""
    return {"begun": partition}


def telling(outcome: Outcome) -> Message:
    return {"outcome": asdict(outcome)}


def told(message: Message) -> Outcome | None:
    """The outcome that a message holds, if it holds one."""
    found = message.get("outcome")
    return None if found is None else Outcome(**{**found, "status": Status(found["status"])})


def leaving(partition: int, position: int, why: str = "") -> Message:
    """The holder has let go of a partition; ``why`` is empty unless it could not go on."""
    return {"left": {"partition": partition, "position": position, "why": why}}
