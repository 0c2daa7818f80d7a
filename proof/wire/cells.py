"""The experiments as cells of the fault matrix: a name, a connection and a seed in, a result as JSON out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from proof.wire.torn import F11, Result, experiment
from protocol.connection import Connection

TRIES = 30  # unless the caller asks for another number
# Below this share of broken tries a control has not shown the fault, so that a clean strict writer shows nothing.
BELIEVED_FROM = 0.95


TARGETS = {
    "strict": "writer",
    "reuse": "a writer that reuses its producer (control)",
    "plain": "a writer without sequence numbers (control)",
}
_HELD = "held, connection cut, released inside the next transaction"
FAULTS = {"F11": _HELD, "F12": _HELD, "F13": "written, their reply lost, connection cut"}
MOMENTS = {"F11": "next transaction", "F12": "next transaction", "F13": "reply"}


def _cell(
    row: str,
    fault: str,
    scripts: Sequence[str],
    writer: str,
    expected: str,
    connection: Connection,
    seed: int,
    tries: int = TRIES,
) -> dict[str, Any]:
    """One experiment; a control is expected to be `violated`, by 95 % of its tries at least."""
    began, clock = datetime.now(UTC), time.monotonic()
    result = experiment(connection, writer, tries, scripts, seed=seed)
    told = result.tally
    answered = tries - told.late["no answer"]
    return {
        "cell": _name(row, fault, writer),
        "row": row,
        "fault": f"{fault} {FAULTS[row]}",
        "target": TARGETS[writer],
        "moment": MOMENTS[row],
        "path": "proxy",
        "seed": seed,
        "verdict": verdict(result, expected),
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 2),
        "bound_s": None,
        "recovery_s": [],
        "stall_s": [],
        "fired": {"late_frames": answered, "broken": told.broken},
        "needed": {"late_frames": tries},
        "counts": {
            "outputs": sum(place.visible for place in result.log.values()),
            "committed_transactions": sum(a.fate == "committed" for t in result.tries for a in t.attempts),
            "aborted_transactions": sum(a.fate == "given up" for t in result.tries for a in t.attempts),
            "aborted_records": sum(not place.visible for place in result.log.values()),
        },
        "anomalies": [
            {
                "name": anomaly.name,
                "topic": "output",
                "partition": 0,
                "offset": anomaly.offset,
                "producer_id": anomaly.producer_id,
                "epoch": anomaly.epoch,
                "evidence": f"try {number}: {anomaly.evidence}",
            }
            for number, anomaly in told.first
        ],
        "doubts": told.troubles,
        "note": f"late frames answered: {dict(told.late)}; {told.broken} of {told.tries} tries broken",
        "expected": expected,
    }


def verdict(result: Result, expected: str) -> str:
    """`violated` as soon as one try is, but a control has to reach 95 %; `inconclusive` when a frame had no answer."""
    told = result.tally
    if expected == "violated":
        return "violated" if result.share_broken >= BELIEVED_FROM else "inconclusive"
    if told.broken:
        return "violated"
    return "inconclusive" if told.inconclusive else "proven"


def _name(row: str, fault: str, writer: str) -> str:
    return f"{row}-{fault}-{writer if writer == 'strict' else 'control'}"


Cell = Callable[..., dict[str, Any]]
"""(connection, seed, tries) -> the result."""
_EXPERIMENTS = (
    ("F11", "end-txn", F11, "reuse"),
    ("F12", "offsets", ("late-offsets",), "reuse"),
    ("F12", "records", ("late-records",), "plain"),  # sequence numbers protect a reused producer here
    ("F13", "records", ("lost-records-reply",), "plain"),
)
WRITER_OF = {_name(row, fault, one): one for row, fault, _, control in _EXPERIMENTS for one in (control, "strict")}
CELLS: dict[str, Cell] = {
    _name(row, fault, writer): partial(_cell, row, fault, scripts, writer, expected)
    for row, fault, scripts, control in _EXPERIMENTS
    for writer, expected in ((control, "violated"), ("strict", "proven"))
}
