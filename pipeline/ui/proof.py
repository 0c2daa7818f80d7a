"""What a proof's file says: of one `proof verify --json`, or of a campaign; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from pipeline.ui.told import Proof

_PROVEN, _VIOLATED, _INCONCLUSIVE = "proven", "violated", "inconclusive"
_MARKS = (_VIOLATED, _INCONCLUSIVE, _PROVEN)
_CONTROL, _NOTHING = "control", "not applicable"
_SHOWN = 8
_CELL = {"cell", "verdict", "seed"}


def read(content: bytes, written_s: float) -> Proof:
    """
    One document, or one JSON object per line as a campaign appends them.

    Raises:
        ValueError: it is neither; the text says what was expected.
    """
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        found = {"cells": _lines(content)}
    if isinstance(found, dict) and found.get("verdict") in _MARKS and "inputs" in found:
        return _verified(found, written_s)
    cells = found.get("cells") if isinstance(found, dict) else None
    if isinstance(cells, list) and cells and all(isinstance(one, dict) and one.keys() >= _CELL for one in cells):
        return _campaign(cells, written_s)
    raise ValueError("neither a document of `proof verify --json` nor results of `proof campaign`")


def _lines(content: bytes) -> list[Any]:
    """Complete lines; the last one may just be written."""
    try:
        return [orjson.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    except orjson.JSONDecodeError:
        return []


def _verified(found: Mapping[str, Any], written_s: float) -> Proof:
    number = {name: _int(found.get(name)) for name in ("inputs", "outputs", "dead_letters", "backlog")}
    counts = {name: _int(count) for name, count in _mapping(found.get("counts")).items()}
    balance = "=" if number["inputs"] == number["outputs"] + number["dead_letters"] else "≠"
    came = f"{number['outputs']:,} outputs + {number['dead_letters']:,} dead letters"
    lines = [f"{number['inputs']:,} inputs {balance} {came}"]
    if number["backlog"]:
        lines.append(f"{number['backlog']:,} inputs not read yet")
    if counts:
        lines.append(
            f"{counts.get('committed_transactions', 0):,} transactions committed, "
            f"{counts.get('aborted_transactions', 0):,} aborted ({counts.get('aborted_records', 0):,} records)"
        )
    wrong = [f"{name}: {_int(count):,}" for name, count in _mapping(found.get("totals")).items()]
    wrong += [f"could not tell: {one}" for one in _texts(found.get("doubts"))]
    return Proof(str(found["verdict"]), "proof verify", tuple(lines), tuple(wrong[:_SHOWN]), written_s)


def _campaign(cells: Sequence[Mapping[str, Any]], written_s: float) -> Proof:
    """
    A cell is as good as its worst run, and the campaign as its worst cell.

    A control is meant to be violated: it counts as proven when it is, and as inconclusive when it is not. What the
    runner said beforehand to be not applicable counts for nothing.
    """
    judged = [(f"{one['cell']}, seed {_int(one['seed'])}", _judged(one)) for one in cells]
    counts = Counter(mark for _, mark in judged)
    mark = next((one for one in (*_MARKS[:2], _PROVEN) if counts[one]), _INCONCLUSIVE)
    lines = [
        f"{len(judged):,} runs of {len({str(one['cell']) for one in cells}):,} cells",
        ", ".join(f"{counts[one]:,} {one}" for one in (_PROVEN, *_MARKS[:2]) if counts[one]),
    ]
    if counts[_CONTROL]:
        lines.append(f"{counts[_CONTROL]:,} controls broke on purpose and were seen")
    if counts[_NOTHING]:
        lines.append(f"{counts[_NOTHING]:,} not applicable")
    wrong = [f"{name}: {found}" for name, found in judged if found in _MARKS[:2]]
    return Proof(mark, "campaign", tuple(filter(None, lines)), tuple(wrong[:_SHOWN]), written_s)


def _judged(cell: Mapping[str, Any]) -> str:
    """The verdict, never better than what stands beside it."""
    verdict, expected = str(cell["verdict"]), str(cell.get("expected", _PROVEN))
    if expected == _VIOLATED:
        return _CONTROL if verdict == _VIOLATED else _INCONCLUSIVE
    if expected == verdict == _INCONCLUSIVE:
        return _NOTHING
    if verdict == _PROVEN and cell.get("anomalies"):
        return _VIOLATED
    if verdict == _PROVEN and cell.get("doubts"):
        return _INCONCLUSIVE
    return verdict if verdict in _MARKS else _INCONCLUSIVE


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []
