"""The summary as a JSON document: the same numbers as on the page."""

from __future__ import annotations

import dataclasses
import math

from proof.report.results import UNKNOWN, Standing
from proof.report.rows import TITLES
from proof.report.summary import Cell, Strip, Summary


def document(summary: Summary) -> dict[str, object]:
    """Durations that never came are null; `matrix` holds the cells that were run, `rows` every row of the matrix."""
    return {
        "verdict": summary.verdict.value,
        "headline": summary.headline,
        "cells": _counts(len(summary.cells), summary.cell_standings),
        "runs": _counts(len(summary.results), summary.run_standings),
        "kernel": summary.kernel,
        "outdated": summary.outdated,
        "seeds": summary.seeds,
        "seconds": round(summary.seconds, 3),
        "totals": summary.totals,
        "bars": [dataclasses.asdict(bar) for bar in summary.bars],
        "rows": [{"row": row, "title": title, "run": row in summary.rows_run} for row, title in sorted(TITLES.items())],
        "matrix": [_cell(cell) for cell in summary.cells],
        "recovery_s": [_strip(strip) for strip in summary.recoveries],
        "stall_s": [_strip(strip) for strip in summary.stalls],
        "fired": [dataclasses.asdict(demand) for demand in summary.demands],
        "anomalies": [
            {"name": name, "unexpected": real, "with_controls": every}
            for name, (real, every) in summary.anomalies.items()
        ],
        "campaigns": [dataclasses.asdict(one) for one in summary.provenance],
    }


def _counts(total: int, standings: dict[Standing, int]) -> dict[str, int]:
    return {"total": total, **{standing.value: count for standing, count in standings.items()}}


def _cell(cell: Cell) -> dict[str, object]:
    runs = [
        {
            "seed": result.seed,
            "standing": result.standing.value,
            "verdict": result.verdict.value,
            "expected": result.expected.value,
            "reasons": result.reasons,
            "began": result.began,
            "commit": result.commit or UNKNOWN,
            "kernel": result.kernel or UNKNOWN,
            "current": result.current,
            "versions": result.versions,
            "anomalies": len(result.anomalies),
            "replay": result.replay,
        }
        for result in cell.results
    ]
    return {"cell": cell.name, "row": cell.row, "standing": cell.standing.value, "runs": runs}


def _strip(strip: Strip) -> dict[str, object]:
    times = strip.times
    return {
        "row": strip.row,
        "path": strip.path,
        "count": times.count,
        "never": times.never,
        "p50": _finite(times.quantile(0.50)),
        "p95": _finite(times.quantile(0.95)),
        "max": _finite(times.longest),
        "bounds_s": list(strip.bounds),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
