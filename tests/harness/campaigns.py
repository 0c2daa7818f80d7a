"""Results of a fictitious campaign: all rows, several seeds, some violated, inconclusive and hostile ones."""

from __future__ import annotations

import random
from typing import Any

HOSTILE = "<script>alert(1)</script> \" ' & | ` \x00\x1b[31m \u202e reversed \ud800 ]]> --> 日本語 🍺"

POINTS = ("after-fence", "mid-produce", "after-flush", "after-send-offsets", "commit-in-flight", "after-commit")
ROLES = ("input-leader", "output-leader", "transaction-coordinator", "group-coordinator")
# row -> fault, path, bound in seconds, targets, moments
CELLS: dict[str, tuple[str, str, float | None, tuple[str, ...], tuple[str, ...]]] = {
    "F01": ("SIGKILL", "writer", 2.0, ("writer",), POINTS[:4]),
    "F02": ("SIGKILL", "proxy", 15.0, ("writer",), ("commit-released", "commit-dropped")),
    "F03": ("SIGKILL", "writer", 2.0, ("writer",), (*POINTS[4:], "before-report")),
    "F04": ("SIGSTOP", "writer", 5.0, ("writer",), ("after-send-offsets",)),
    "F05": ("SIGSTOP", "writer", 25.0, ("writer",), ("mid-produce",)),
    "F06": ("SIGKILL", "spark", 30.0, ("executor", "driver"), (*POINTS, "before-report")),
    "F07": ("SIGSTOP", "spark", 30.0, ("orphan",), ("mid-produce",)),
    "F08": ("second driver", "spark", None, ("lease-on", "lease-off"), ("60s",)),
    "F09": ("plan", "spark", None, ("speculation", "repartition", "min-partitions"), ("task",)),
    "F11": ("hold EndTxn", "proxy", None, ("strict", "reuse"), ("next-transaction",)),
    "F12": ("hold", "proxy", None, ("TxnOffsetCommit", "Produce"), ("next-transaction",)),
    "F13": ("drop reply", "proxy", 20.0, ("InitProducerId", "AddOffsetsToTxn", "EndTxn"), ("once", "always")),
    "F14": ("SIGKILL", "writer", 15.0, ROLES, ("mid-produce", "commit-in-flight")),
    "F15": ("SIGSTOP", "writer", 35.0, ROLES, ("mid-produce",)),
    "F16": ("SIGKILL", "writer", 60.0, ("all-brokers",), ("mid-produce",)),
    "F17": ("restart", "writer", 15.0, ("clean", "kill"), ("rolling",)),
    "F18": ("election", "writer", 15.0, ("leaders", "reassignment"), ("storm",)),
    "F19": ("partition", "writer", 20.0, ("coordinator", "broker-1", "all"), ("mid-produce", "commit-in-flight")),
    "F20": ("netem", "writer", None, ("delay", "loss", "reorder", "rate"), ("always",)),
    "F21": ("disk full", "writer", 30.0, ("broker-1",), ("mid-produce",)),
    "F22": ("SIGKILL", "writer", 30.0, ("two-brokers",), ("mid-produce",)),
    "F23": ("offsets gone", "writer", None, ("deleted", "expired"), ("start",)),
    "F24": ("retention", "writer", None, ("input",), ("start",)),
    "F25": ("recreate", "writer", None, ("input",), ("start", "running")),
    "F26": ("add partitions", "writer", 30.0, ("input",), ("running",)),
    "F27": ("hijack", "writer", 15.0, ("transactional-id", "group"), ("running",)),
    "F28": ("epoch overflow", "writer", None, ("transactional-id",), ("running",)),
    "F35": ("poison", "writer", None, ("fuzz", "large", "deep", "bytes"), ("running",)),
    "F37": ("ENOSPC", "spark", 30.0, ("spill", "read-only"), ("running",)),
    "F38": ("mixture", "writer", 35.0, ("all",), ("soak",)),
}


def campaign(seeds: int = 3, *, broken: bool = True, kernel: str = "") -> dict[str, Any]:
    """
    Return a campaign as in `results.json`, made with ``kernel``.

    With ``broken``, two cells are violated, three inconclusive, one is of another kernel, and a name is hostile.
    """
    chance = random.Random(4)
    cells = [
        _result(chance, f"{row}-{moment}-{target}", row, row_of, target, moment, seed)
        for row, row_of in CELLS.items()
        for target in row_of[3]
        for moment in row_of[4]
        for seed in range(1, seeds + 1)
    ]
    for one in cells if kernel else ():
        one |= {"kernel": kernel, "commit": "0123456789ab"}
    if broken:
        _break(cells)
    versions = {"python": "3.11.2", "confluent-kafka": "2.16.1", "librdkafka": "2.16.0", "kafka": "4.1.1"}
    about = {
        "command": "python -m proof campaign --all --seeds 3 --out results",
        "began": "2026-11-21T02:10:00+00:00",
        "seconds": 8123.4,
        "machine": "2 cores, 24 GiB, Linux 6.1",
        "versions": {**versions, "pyspark": "4.2.0"},
        "seeds": list(range(1, seeds + 1)),
    }
    return {"campaign": about, "cells": cells}


def _result(
    chance: random.Random, cell: str, row: str, kind: tuple[Any, ...], target: str, moment: str, seed: int
) -> dict[str, Any]:
    fault, path, bound, *_ = kind
    control = target == "reuse"
    kills = 40 if fault == "SIGKILL" and path == "writer" else 4
    middle = {"spark": 7.0}.get(path, 0.6 if (bound or 0) < 5 else (bound or 10) / 4)
    recovery = [round(chance.lognormvariate(0, 0.25) * middle, 3) for _ in range(kills)] if bound else []
    rows = chance.randint(4_000, 12_000)
    torn = [_anomaly("torn-txn", chance, "a record of an aborted transaction became visible") for _ in range(3)]
    return {
        "cell": cell, "row": row, "fault": fault, "target": target, "moment": moment, "path": path, "seed": seed,
        "verdict": "violated" if control else "proven", "began": "2026-11-21T02:11:07+00:00",
        "seconds": round(chance.uniform(8, 40), 1), "bound_s": bound, "recovery_s": recovery,
        "stall_s": [round(chance.lognormvariate(0, 0.3) * middle * 0.7, 3) for _ in recovery],
        "fired": {"kills": kills, "fences": kills + 1, "retries": 7}, "needed": {"kills": kills, "fences": 1},
        "counts": {
            "inputs": rows, "outputs": rows - 12, "dead_letters": 12,
            "committed_transactions": 33_400 if row == "F28" else rows // 90, "aborted_transactions": kills + 12,
            "aborted_records": kills * 80,
        },
        "anomalies": torn if control else [], "doubts": [], "note": "",
        "expected": "violated" if control else "proven", "versions": {"kafka": "4.1.1"},
    }  # fmt: skip


def _anomaly(name: str, chance: random.Random, evidence: str) -> dict[str, Any]:
    place = {"topic": "brew.orders.enriched", "partition": chance.randrange(4), "offset": chance.randrange(9_000)}
    return {"name": name, **place, "producer_id": chance.randrange(5_000), "epoch": 3, "evidence": evidence}


def _break(cells: list[dict[str, Any]]) -> None:
    """Corrupt a few results, each in a different way."""
    chance = random.Random(5)
    by_key = {(one["cell"], one["seed"]): one for one in cells}
    long = "\n".join(f"offset {4_100 + n}: source 2/{900 + n}, epoch {n % 4}, committed" for n in range(40))
    lost = by_key["F14-commit-in-flight-transaction-coordinator", 3]
    lost |= {"verdict": "violated", "note": "the new coordinator answered NOT_COORDINATOR for 11 s"}
    lost["anomalies"] = [_anomaly("lost-output", chance, HOSTILE), _anomaly("duplicate-output", chance, long)]
    lost["recovery_s"][-1] = 21.5
    many = by_key["F19-mid-produce-broker-1", 1]
    many |= {"verdict": "violated"}
    many["anomalies"] = [_anomaly("nonmonotonic-output", chance, f"source offset {n} after {n + 3}") for n in range(31)]
    by_key["F21-mid-produce-broker-1", 2] |= {"verdict": "inconclusive", "doubts": [f"the log ended early {HOSTILE}"]}
    by_key["F04-after-send-offsets-writer", 2]["fired"] = {"kills": 3, "fences": 0}
    by_key["F17-rolling-clean", 1] |= {"kernel": "0123456789ab", "commit": "abcdef012345"}
    senseless = cells[-1]["cell"]
    for one in (one for one in cells if one["cell"] == senseless):
        one |= {"verdict": "inconclusive", "expected": "inconclusive", "doubts": ["not applicable: nothing to restore"]}
    by_key["F11-next-transaction-reuse", 2] |= {"verdict": "proven", "anomalies": []}
    for seed in (1, 2, 3):
        if one := by_key.get(("F35-running-bytes", seed)):
            one |= {"cell": "F35-running-" + HOSTILE[:40], "note": HOSTILE}
