"""End the picked transactions one by one, and keep account of each, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.operate.judge.cases import SICK, Case
from pipeline.operate.options import advice
from pipeline.operate.ward import end
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.denied import advice as denied
from protocol.errors import BrewError

_END_S = 30.0
ENDED = "ended"
_OVER = "over by itself, or its owner has begun another: nothing was ended"


@dataclass
class Account:
    """
    What became of each transaction that was picked, or asked about.

    ``over``: ended without us, or its owner has begun another since. ``left``: lingers, and was not to be ended.
    ``failed``: still open, and why.
    """

    ended: list[Case] = field(default_factory=list)
    over: list[Case] = field(default_factory=list)
    left: list[Case] = field(default_factory=list)
    failed: list[tuple[Case, str]] = field(default_factory=list)

    def sick(self, cases: Iterable[Case]) -> list[Case]:
        """Those of ``cases`` that are as sick as before."""
        return [one for one in cases if one.kind in SICK and one not in self.ended and one not in self.over]

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        named = {"ended": self.ended, "over": self.over, "left": self.left}
        failed = [{"transaction": case.names[0], "error": error} for case, error in self.failed]
        return {what: [one.names[0] for one in cases] for what, cases in named.items()} | {"failed": failed}


def end_each(
    connection: Connection, picked: Iterable[Case], agreed: Callable[[Case], bool], told: Callable[[Case, str], None]
) -> Account:
    """
    End those that ``agreed`` agrees to; ``told`` hears a sentence of each, as soon as it is known.

    One that fails stops no other: it is accounted for with what to do next.
    """
    account = Account()
    for case in picked:
        if not agreed(case):
            account.left.append(case)
            continue
        try:
            ended = end(connection, case, Deadline(_END_S))
        except BrewError as error:
            why = f"{error}; {no}" if (no := _denied(error, connection)) else advice(error)
            account.failed.append((case, why))
            told(case, f"not ended: {why}")
        else:
            (account.ended if ended else account.over).append(case)
            told(case, ENDED if ended else _OVER)
    return account


def _denied(error: BrewError, connection: Connection) -> str | None:
    """Who lacks which right; None where the brokers did not say no."""
    return denied(str(error), connection.user, {}, connection.source)
