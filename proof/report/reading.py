"""Results as the campaign writes them, checked field by field; text in, values or a refusal with the place out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from proof.findings import Verdict
from proof.report.results import Anomaly, Provenance, Result
from protocol.errors import Refused

_REPAIR = "run the cell again, or take it out of the file"


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and where it stands; each getter checks what it hands out."""

    values: dict[str, Any]
    place: str

    @classmethod
    def of(cls, value: object, place: str) -> Fields:
        if not isinstance(value, dict):
            raise Refused(f"{place} is not a JSON object; {_REPAIR}")
        return cls(value, place)

    def _wrong(self, name: str, need: str) -> Refused:
        found = f"is {self.values[name]!r:.80}" if name in self.values else "is missing"
        return Refused(f"{self.place}: {name!r} {found}, it must be {need}; {_REPAIR}")

    def text(self, name: str, *, required: bool = False) -> str:
        value = self.values.get(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or (required and not value):
            raise self._wrong(name, "a text")
        return value

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is not None and not _is_number(value):
            raise self._wrong(name, "a number of 0 or more")
        return value

    def integer(self, name: str, *, required: bool = False) -> int | None:
        value = self.values.get(name)
        if (value is None and required) or (value is not None and type(value) is not int):
            raise self._wrong(name, "an integer")
        return value

    def verdict(self, name: str, default: Verdict | None = None) -> Verdict:
        value = self.values.get(name, default)
        if value not in tuple(Verdict):
            raise self._wrong(name, f"one of {', '.join(Verdict)}")
        return Verdict(value)

    def items(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value or []

    def numbers(self, name: str) -> tuple[float, ...]:
        if not all(map(_is_number, self.items(name))):
            raise self._wrong(name, "a list of numbers of 0 or more")
        return tuple(map(float, self.items(name)))

    def table(self, name: str) -> dict[str, Any]:
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value or {}

    def tally(self, name: str) -> dict[str, int]:
        counts = {kind: count for kind, count in self.table(name).items() if count is not None}
        if not all(type(count) is int and count >= 0 for count in counts.values()):
            raise self._wrong(name, "an object of counts")
        return counts


def _is_number(value: object) -> bool:
    # JSON as Python reads it knows NaN and Infinity; no duration is one.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def read(text: str, name: str, kernel: str = "") -> tuple[list[Provenance], list[Result]]:
    """
    Read one file of results: a whole campaign (`results.json`), or one result a line (`results.jsonl`).

    ``kernel`` is today's (`proof.provenance`): results of it are current, all others are not.

    Raises:
        Refused: it is neither; the text names file, line and field.
    """
    try:
        whole = json.loads(text)
    except ValueError:
        return [], _lines(text, name, kernel)
    if isinstance(whole, dict) and "cells" in whole:
        found = Fields(whole, name)
        places = enumerate(found.items("cells"), 1)
        results = [_result(Fields.of(one, f"{name} cell {at}"), kernel) for at, one in places]
        about = _provenance(Fields(found.table("campaign"), f"{name} campaign"))
        return [about], [one if one.versions else replace(one, versions=about.versions) for one in results]
    return [], [_result(Fields.of(whole, f"{name} line 1"), kernel)]


def _lines(text: str, name: str, kernel: str) -> list[Result]:
    results = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{name} line {number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise Refused(f"{place} is not JSON ({error}); {_REPAIR}") from error
        results.append(_result(Fields.of(value, place), kernel))
    return results


def _provenance(of: Fields) -> Provenance:
    told = of.text("command"), of.text("began"), of.number("seconds"), of.text("machine")
    return Provenance(*told, of.text("commit"), of.text("kernel"), _versions(of))


def _versions(of: Fields) -> dict[str, str]:
    return {str(part): str(version) for part, version in of.table("versions").items()}


def _result(of: Fields, kernel: str) -> Result:
    return Result(
        cell=of.text("cell", required=True),
        row=of.text("row", required=True),
        fault=of.text("fault"),
        target=of.text("target"),
        moment=of.text("moment"),
        path=of.text("path"),
        seed=of.integer("seed", required=True) or 0,
        said=of.verdict("verdict"),
        expected=of.verdict("expected", Verdict.PROVEN),
        began=of.text("began"),
        seconds=of.number("seconds") or 0.0,
        bound_s=of.number("bound_s"),
        recovery_s=of.numbers("recovery_s"),
        stall_s=of.numbers("stall_s"),
        fired=of.tally("fired"),
        needed=of.tally("needed"),
        counts=of.tally("counts"),
        anomalies=tuple(_anomaly(Fields.of(one, f"{of.place} anomaly")) for one in of.items("anomalies")),
        doubts=tuple(str(doubt) for doubt in of.items("doubts")),
        note=of.text("note"),
        commit=of.text("commit"),
        kernel=of.text("kernel"),
        versions=_versions(of),
        current=of.text("kernel") == kernel,
    )


def _anomaly(of: Fields) -> Anomaly:
    evidence = of.values.get("evidence", "")
    return Anomaly(
        name=of.text("name", required=True),
        topic=of.text("topic"),
        partition=of.integer("partition"),
        offset=of.integer("offset"),
        producer_id=of.integer("producer_id"),
        epoch=of.integer("epoch"),
        evidence=evidence if isinstance(evidence, str) else json.dumps(evidence, indent=2, ensure_ascii=False),
    )
