"""Late frames against the pipeline itself, and F11 to F13 as cells of the fault matrix."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.names import TransactionalId
from proof.wire.codec import Api, error_name
from proof.wire.late import AttemptState
from proof.wire.proxy import WireProxy
from proof.wire.rules import Rule
from proof.wire.torn import F11, Result, experiment

_RANGE, _SPARE = 20, 50  # orders of a transaction, transactions
_STEP_S, _PROGRAM_S = 60.0, 300.0
TRIES = 30
# With a smaller share of broken tries, the control has not shown the fault, and a clean strict writer proves nothing.
BELIEVED_FROM = 0.95
TARGETS = {
    "strict": "writer",
    "reuse": "a writer that reuses its producer (control)",
    "plain": "a writer without sequence numbers (control)",
}
_HELD = "held, connection cut, released inside the next transaction"
FAULTS = {"F11": _HELD, "F12": _HELD, "F13": "written, their reply lost, connection cut"}
MOMENTS = {"F11": "next transaction", "F12": "next transaction", "F13": "reply"}


@dataclass
class ProductResult:
    """The replies to the late frames, how many epochs late they were, and the checker's report on the run."""

    api: str
    tries: int
    late: Counter[str] = field(default_factory=Counter)
    epochs_behind: Counter[int] = field(default_factory=Counter)
    report: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The checker's verdict; if it is `proven`, `inconclusive` unless every late frame was refused."""
        verdict = str(self.report.get("verdict", "inconclusive"))
        if verdict != "proven":
            return verdict
        refused = self.tries - self.late[error_name(0)]
        whole = sum(self.late.values()) == self.tries == refused and not self.trouble
        return "proven" if whole else "inconclusive"

    def document(self) -> dict[str, Any]:
        asked = {"writer": "pipeline", "api": self.api, "tries": self.tries, "verdict": self.verdict}
        late = {"late_frames": dict(self.late), "epochs_behind": dict(self.epochs_behind)}
        found = {"counts": self.report.get("counts", {}), "anomalies": self.report.get("totals", {})}
        return {**asked, **late, **found, "trouble": self.trouble, "seconds": round(self.seconds, 2)}


@dataclass(frozen=True)
class _ExperimentTopics:
    """The topics of one experiment, as options of the commands."""

    connection: Connection
    stem: str

    def program(self, *words: str, bootstrap: str = "") -> list[str]:
        return [sys.executable, "-m", *words, "--bootstrap", bootstrap or self.connection.bootstrap]

    @property
    def topics(self) -> list[str]:
        return ["--input", f"{self.stem}.in", "--output", f"{self.stem}.out", "--dead-letter", f"{self.stem}.dlq"]

    def run(self, *words: str, good: tuple[int, ...] = (0,)) -> str:
        """Run a command and return its output; raise `Refused` if its exit code is none of ``good``."""
        command = [*self.program(*words[:2]), *words[2:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROGRAM_S)
        if done.returncode not in good:
            name = f"python -m {' '.join(words[:2])}"
            raise Refused(f"`{name}` exited with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout


def against_pipeline(connection: Connection, tries: int, api: Api = Api.END_TXN) -> ProductResult:
    """
    Run `python -m pipeline run --master none --follow` through the proxy, and deliver one frame per try too late.

    The frame's connection is cut. Once the next transaction has written its records, the frame is released and its
    reply awaited. After the tries, another run processes the remaining orders, and the checker reads everything.
    """
    began = time.monotonic()
    experiment = _ExperimentTopics(connection, f"wire-pipeline-{secrets.token_hex(4)}")
    result = ProductResult(api.title, tries)
    experiment.run("proof", "topics", *experiment.topics, "--partitions", "1")
    orders = _RANGE * (2 * tries + _SPARE)
    experiment.run("proof", "seed", "--topic", f"{experiment.stem}.in", "--count", str(orders))
    with WireProxy(connection.bootstrap) as proxy, _following(experiment, proxy):
        try:
            for _ in range(tries):
                _try(proxy, api, str(TransactionalId(experiment.stem, f"{experiment.stem}.in", 0)), result)
        except BrewError as error:
            result.trouble = str(error)
        result.trouble = result.trouble or "; ".join(proxy.failures)
    experiment.run(
        "pipeline", "run", "--master", "none", *experiment.topics, "--group", experiment.stem, "--progress", "none"
    )
    output = experiment.run("proof", "verify", *experiment.topics, "--group", experiment.stem, "--json", good=(0, 1, 3))
    result.report = json.loads(output)
    result.seconds = time.monotonic() - began
    return result


def _try(proxy: WireProxy, api: Api, transactional_id: str, result: ProductResult) -> None:
    committed = True if api is Api.END_TXN else None
    late = proxy.add(Rule(api, transactional_id=transactional_id, committed=committed, cut=True))
    caught = late.caught(Deadline(_STEP_S))
    # The next transaction's AddOffsetsToTxn, or EndTxn: its records are written before.
    marks = Rule(Api.ADD_OFFSETS_TO_TXN, transactional_id=transactional_id)
    if api is not Api.END_TXN:
        marks = Rule(Api.END_TXN, transactional_id=transactional_id, nth=2)
    inside = proxy.add(marks)
    try:
        following = inside.caught(Deadline(_STEP_S))
        late.release()
        answer = late.answered(Deadline(_STEP_S))
        result.late["no error read" if answer.error is None else error_name(answer.error)] += 1
        result.epochs_behind[following.details.epoch - caught.details.epoch] += 1
    finally:
        proxy.remove(inside)
        proxy.remove(late)


@contextlib.contextmanager
def _following(experiment: _ExperimentTopics, proxy: WireProxy) -> Iterator[None]:
    """Run the pipeline in the background; on exit stop it with SIGTERM, or with SIGKILL if it does not end."""
    options = ["--master", "none", "--follow", "--lanes", "1", "--max-records-per-transaction", str(_RANGE)]
    command = [
        *experiment.program("pipeline", "run", bootstrap=proxy.bootstrap),
        *experiment.topics,
        "--group",
        experiment.stem,
    ]
    command += [*options, "--progress", "none"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STEP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _cell(
    row: str, fault: str, scripts: Sequence[str], writer: str, connection: Connection, seed: int, tries: int = TRIES
) -> dict[str, Any]:
    """Run one experiment and return its result; a control is `violated` if at least 95 % of its tries break."""
    began, clock = datetime.now(UTC), time.monotonic()
    expected = "proven" if writer == "strict" else "violated"
    result = experiment(connection, writer, tries, scripts, seed=seed)
    tally = result.tally
    answered = tries - tally.late["no answer"]
    states = Counter(attempt.state for tried in result.tries for attempt in tried.attempts)
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
        "fired": {"late_frames": answered, "broken": tally.broken},
        "needed": {"late_frames": tries},
        "counts": {
            "outputs": sum(experiment.visible for experiment in result.log.values()),
            "committed_transactions": states[AttemptState.COMMITTED],
            "aborted_transactions": states[AttemptState.GIVEN_UP],
            "aborted_records": sum(not experiment.visible for experiment in result.log.values()),
        },
        "anomalies": [
            {"name": found.name, "topic": "output", "partition": 0}
            | {"offset": found.offset, "producer_id": found.producer_id, "epoch": found.epoch}
            | {"evidence": f"try {number}: {found.evidence}"}
            for number, found in tally.first
        ],
        "doubts": tally.troubles,
        "note": f"late frames answered: {dict(tally.late)}; {tally.broken} of {tally.tries} tries broken",
        "expected": expected,
    }


def verdict(result: Result, expected: str) -> str:
    """Return `violated` if any try broke, but at least 95 % of a control's; `inconclusive` if any try was."""
    tally = result.tally
    if expected == "violated":
        return "violated" if result.share_broken >= BELIEVED_FROM else "inconclusive"
    if tally.broken:
        return "violated"
    return "inconclusive" if tally.inconclusive else "proven"


def _name(row: str, fault: str, writer: str) -> str:
    return f"{row}-{fault}-{writer if writer == 'strict' else 'control'}"


Cell = Callable[..., dict[str, Any]]
"""Takes connection, seed and tries; returns the result."""
_EXPERIMENTS = (
    ("F11", "end-txn", F11, "reuse"),
    ("F12", "offsets", ("late-offsets",), "reuse"),
    ("F12", "records", ("late-records",), "plain"),  # sequence numbers protect a reused producer here
    ("F13", "records", ("lost-records-reply",), "plain"),
)
WRITER_OF = {_name(row, fault, name): name for row, fault, _, control in _EXPERIMENTS for name in (control, "strict")}
CELLS: dict[str, Cell] = {
    _name(row, fault, writer): partial(_cell, row, fault, scripts, writer)
    for row, fault, scripts, control in _EXPERIMENTS
    for writer in (control, "strict")
}
