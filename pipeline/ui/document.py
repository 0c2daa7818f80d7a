"""The view as JSON; pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.ui.transactions import Transaction
from pipeline.ui.view import Lamp, Row, View


def document(view: View) -> dict[str, Any]:
    """All that page and terminal show; null is what nobody told."""
    totals = view.totals
    return {
        "names": asdict(view.names),
        "now_ms": view.now_ms,
        "sources": {name: _lamp(lamp) for name, lamp in view.lamps.items()},
        "totals": {
            "rate": _rounded(totals.rate),
            "unit": totals.unit,
            "to_read": totals.left,
            "exact": totals.exact,
            "lag_s": _rounded(totals.lag_s),
            "states": dict(totals.states),
            "transactions": dict(totals.outcomes),
            "counted": totals.counted,
        },
        "partitions": [_row(row) for row in view.rows],
        "transactions": [_transaction(one) for one in view.transactions],
        "proof": None if view.proof is None else asdict(view.proof),
        "preflight": None if view.findings is None else [one.document() for one in view.findings],
        "not_told": list(view.notes),
    }


def _lamp(lamp: Lamp) -> dict[str, Any]:
    return {"asked": not lamp.off, "said": lamp.said, "age_s": _rounded(lamp.age_s), "stale": lamp.stale}


def _row(row: Row) -> dict[str, Any]:
    strip = row.strip
    return {
        "partition": row.partition,
        "state": row.state,
        "why": row.why,
        "position": row.position,
        "last_stable": row.last_stable,
        "end": row.end,
        "to_read": row.left,
        "exact": row.exact,
        "lag_s": _rounded(row.lag_s),
        "rate": _rounded(row.rate),
        "unit": row.unit,
        "step": row.step,
        "steps_s": {name: _rounded(seconds) for name, seconds in row.steps.items()},
        "open_s": _rounded(row.open_s),
        "last_transaction": None if row.last is None else _transaction(row.last),
        "tail": None if strip is None else {kind.value: count for kind, count in strip.counts().items() if count},
    }


def _transaction(one: Transaction) -> dict[str, Any]:
    return asdict(one) | {"seconds": _rounded(one.seconds)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
