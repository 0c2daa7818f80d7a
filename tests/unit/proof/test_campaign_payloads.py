"""Fuzzed payloads: made again by their numbers, around every limit, judged alike by pipeline and checker."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from brew.deadline import Deadline
from brew.orders import Reason
from brew.record import Reject
from brew.settings import Limits
from pipeline.enrichment import enricher
from proof.campaign.cells.payload import KINDS, MAX_BYTES, MAX_DEPTH, limit_broken, payload, payloads
from proof.campaign.programs import Programs, digest, parsed, watching
from proof.oracle import beyond, unjustified, wrong_enrichment

COUNT = 100 * len(KINDS)
VALUES = [payload(7, number)[1] for number in range(COUNT)]
# What the pipeline makes of the payloads, with limits of its own, in a process that is watched.
ENRICHES = """
import sys
from pipeline.enrichment import enricher
from brew.settings import Limits
from proof.campaign.cells.payload import payload
enrich = enricher(Limits(int(sys.argv[1]), int(sys.argv[2])))
for number in range(int(sys.argv[3])):
    enrich(*payload(7, number))
"""


def test_a_payload_is_known_by_seed_and_number() -> None:
    """A finding can be made again without the hundred thousand before it; other seeds give others."""
    assert [value for _, value in payloads(COUNT, 7)][:COUNT] == VALUES
    assert sum(payload(8, number)[1] != value for number, value in enumerate(VALUES)) > COUNT * 0.9
    assert [len(value or b"") >> 20 for _, value in list(payloads(0, 7))] == [1, 10]


def test_payloads_lie_on_both_sides_of_each_limit() -> None:
    values = [value for value in VALUES if value is not None]
    assert {MAX_BYTES - 1, MAX_BYTES, MAX_BYTES + 1} <= {len(value) for value in values}
    depths = (999, MAX_DEPTH, MAX_DEPTH - 1)
    few, more, most = (sum(beyond(value, 10**9, depth) is not None for value in values) for depth in depths)
    assert 0 < few < more < most


def test_the_pipeline_and_the_checker_agree_about_every_payload() -> None:
    enrich, became = enricher(Limits(MAX_BYTES, MAX_DEPTH)), Counter[str]()
    for number in range(COUNT):
        key, value = payload(7, number)
        answer = enrich(key, value)
        if isinstance(answer, Reject):
            wrong = unjustified(answer.reason, value)
            if value is not None and wrong is None:
                wrong = limit_broken(value, answer.reason, was_parsed=False)
        else:
            wrong = wrong_enrichment(key, value, answer) or limit_broken(value or b"", None, was_parsed=True)
        assert wrong is None, (number, value)
        became[answer.reason if isinstance(answer, Reject) else "delivered"] += 1
    assert became.keys() == {*Reason, "delivered"}


@pytest.mark.parametrize(
    ("max_bytes", "max_depth", "passed"),
    [(MAX_BYTES, MAX_DEPTH, set()), (10**9, MAX_DEPTH, {Reason.TOO_LARGE}), (MAX_BYTES, 250, {Reason.TOO_DEEP})],
)
def test_what_is_parsed_is_seen(tmp_path: Path, max_bytes: int, max_depth: int, passed: set[Reason]) -> None:
    """Nothing over a limit that is held, everything over one that is not; from outside of the program."""
    with Programs(tmp_path) as programs:
        with watching(programs, tmp_path / "parsed"):
            words = (str(max_bytes), str(max_depth), str(COUNT))
            program = programs.start("enriches", sys.executable, "-c", ENRICHES, *words)
        program.done(Deadline(60))
        assert "PYTHONPATH" not in programs.environment
    seen = parsed(tmp_path / "parsed")
    over = {value: reason for value in VALUES if value is not None and (reason := beyond(value, MAX_BYTES, MAX_DEPTH))}
    assert {reason for value, reason in over.items() if digest(value) in seen} == passed
    held = {digest(value) for value in VALUES if value is not None and value not in over}
    assert held <= seen


@pytest.mark.parametrize(
    ("value", "rejected", "was_parsed", "name"),
    [
        (b"x" * MAX_BYTES, "not-json", True, None),
        (b"x" * MAX_BYTES, "too-large", False, "wrong-limit"),
        (b"x" * (MAX_BYTES + 1), "too-large", False, None),
        (b"x" * (MAX_BYTES + 1), "too-large", True, "parsed-over-limit"),
        (b"x" * (MAX_BYTES + 1), "not-json", True, "wrong-limit"),
        (b"[" * MAX_DEPTH, "not-json", True, None),
        (b"[" * MAX_DEPTH + b'"[', "not-json", True, None),
        (b"[" * MAX_DEPTH + b'"\\"', "too-deep", False, "wrong-limit"),
        (b"[" * (MAX_DEPTH + 1), "too-deep", False, None),
        (b"[" * (MAX_DEPTH + 1), "too-large", False, "wrong-limit"),
        (b"[" * (MAX_DEPTH + 1), None, True, "wrong-limit"),
        (b"[" * MAX_DEPTH + b'"\\""{', "too-deep", False, None),
    ],
)
def test_a_limit_is_held_by_its_name_and_before_parsing(
    value: bytes, rejected: str | None, was_parsed: bool, name: str | None
) -> None:
    finding = limit_broken(value, rejected, was_parsed=was_parsed)
    assert (finding and finding[0]) == name
