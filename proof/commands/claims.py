"""Commands that let members race for claims, or take part as one member."""

from __future__ import annotations

import shlex
import sys
import threading
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from brew.claims.member import INTERVAL_S, Membership
from brew.claims.state import SNAPSHOT_RECORDS
from brew.cli import bootstrap_option, flag, plain_option, typed_option
from brew.names import ExitCode, quantity
from brew.signals import stop_on_signals
from proof.campaign.cell import PROVEN, VIOLATED, Result, campaign_metadata, write_file
from proof.claims.members import Races, race, take_part
from proof.commands import connected, file_option, json_option, print_result
from proof.provenance import MadeWith
from proof.report.results import CLAIMS_RACES
from proof.report.summary import Times

_SHOWN = 10


@click.command("claims-races")
@bootstrap_option
@typed_option("--rounds", click.IntRange(1), 100, "Number of rounds.")
@typed_option("--claimants", click.IntRange(2, 64), 8, "Number of claimants, a thread each.")
@typed_option("--partitions", click.IntRange(1, 1000), 64, "Number of partitions that they claim.")
@typed_option("--seed", int, 1, "Seed of the random start delays and order of claims.")
@file_option("--out", "File to write the result to, for `python -m proof report`.")
@json_option
def claims_races(
    bootstrap: str, rounds: int, claimants: int, partitions: int, seed: int, out: Path | None, *, as_json: bool
) -> int:
    """
    Let several claimants claim the same partitions at the same time, round after round, on a new claims topic.

    Afterwards it checks the log with independent code: in each round, each partition must have one owner, the claimant
    whose claim comes first in the log, and no other claimant may believe that it is the owner. Exits with 1 if not.

    Examples:
      python -m proof claims-races
      python -m proof claims-races --rounds 1000 --out docs/proof/claims-races.json
    """
    connection, topic = connected(bootstrap), f"brew.claims-races-{uuid.uuid4().hex[:8]}"
    began = datetime.now(UTC)
    with Progress(console=Console(stderr=True), disable=as_json) as bar:
        task = bar.add_task("rounds", total=rounds)
        size = {"rounds": rounds, "claimants": claimants, "partitions": partitions}
        races = race(connection, topic, **size, seed=seed, advance=lambda: bar.advance(task))
    if out is not None:
        made = MadeWith.now(our_brokers=False)
        about = campaign_metadata(shlex.join(["proof", *sys.argv[1:]]), began, races.seconds, [seed], made)
        write_file(out, about, [result(races, seed, began, made)])
    print_result(_document(races), _text(races), as_json=as_json)
    return ExitCode.VIOLATION if races.findings else ExitCode.DONE


@click.command("claims-member")
@bootstrap_option
@plain_option("--claims", "Topic of the claims log; created if missing.", "TOPIC", required=True)
@plain_option("--client-id", "Name of this member.", "NAME", required=True)
@typed_option(
    "--partitions", click.IntRange(1, 1000), 64, "Number of partitions that all members divide among themselves."
)
@typed_option("--interval-s", float, INTERVAL_S, "Seconds between two heartbeats.")
@typed_option("--skew-s", float, 0.0, "Error of the member's wall clock, in seconds.")
@typed_option(
    *("--rate", click.FloatRange(0.1, 10), 1.0, "Speed of the member's monotonic clock, as a factor."), metavar="FACTOR"
)
@typed_option(
    "--snapshot-records", click.IntRange(10), SNAPSHOT_RECORDS, "Number of messages in the log between two snapshots."
)
@flag("--believing", "Keep claims that were lost, as a control whose violation must be detected.")
def claims_member(bootstrap: str, claims: str, client_id: str, partitions: int, interval_s: float, **given: Any) -> int:
    """
    Claim a share of the partitions until SIGTERM, and print the partitions held.

    Each line is a JSON array: the member's name, its position in the log, and the held partitions with their tokens.

    Example:
      python -m proof claims-member --claims brew.claims.v1 --client-id a
    """
    stop = threading.Event()
    stop_on_signals(stop, follow=True)
    membership = Membership(client_id, "claimants", "raced", tuple(range(partitions)), interval_s)
    take_part(connected(bootstrap), claims, membership, stop, **given)
    return ExitCode.DONE


def result(races: Races, seed: int, began: datetime, made: MadeWith) -> Result:
    """Return the races as a result of row F34, for `proof report`."""
    fault = f"{races.claimants} claimants race for {races.partitions} partitions"
    return Result(
        *("F34-claims-races", "F34", fault, "claimant", "under load", CLAIMS_RACES),
        seed=seed,
        verdict=VIOLATED if races.findings else PROVEN,
        began=began.isoformat(timespec="seconds"),
        seconds=round(races.seconds, 2),
        bound_s=None,
        fired={"rounds": races.rounds, "winners": len(races.wins)},
        needed={"rounds": races.rounds, "winners": 2},
        counts={"messages": races.messages, "grants": sum(races.wins.values())},
        anomalies=[{"name": "two-owners", "evidence": text} for text in races.findings],
        note=f"all owned after {_share(races, 0.5)} s (p50), {_share(races, 1.0)} s (longest)",
        **asdict(made),
    )


def _document(races: Races) -> dict[str, object]:
    owned_after_s = {"p50": _share(races, 0.5), "p99": _share(races, 0.99), "max": _share(races, 1.0)}
    rounded = {"seconds": round(races.seconds, 3), "wins": dict(sorted(races.wins.items()))}
    return {**vars(races), **rounded, "owned_after_s": owned_after_s}


def _share(races: Races, share: float) -> float:
    """Return the seconds within which this share of the rounds had an owner for every partition."""
    return round(Times(tuple(sorted(races.owned_after_s))).quantile(share), 4)


def _text(races: Races) -> str:
    grants = sum(races.wins.values())
    size = (races.rounds, "round"), (races.claimants, "claimant"), (races.partitions, "partition")
    lines = [
        ", ".join(quantity(count, noun) for count, noun in size),
        f"{quantity(grants, 'claim')} granted, {quantity(races.messages, 'message')}, {races.seconds:.1f} s",
        f"all partitions owned after {_share(races, 0.5):g} s (p50), {_share(races, 1.0):g} s (longest)",
        "wins: " + ", ".join(f"{name} {count}" for name, count in sorted(races.wins.items())),
    ]
    if races.findings:
        lines += [f"{quantity(len(races.findings), 'finding')}:", *races.findings[:_SHOWN]]
    else:
        lines.append("0 findings: each partition had one owner per round, by the earliest claim in the log")
    return "\n".join(lines)
