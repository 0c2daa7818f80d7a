"""The command that has members race for claims."""

from __future__ import annotations

import uuid

import click
from rich.console import Console
from rich.progress import Progress

from proof.claims.races import Races, race
from proof.commands.options import bootstrap_option, connected, json_option, say_json
from protocol.names import ExitCode

_SHOWN = 10


@click.command("claims-races")
@bootstrap_option
@click.option("--rounds", type=click.IntRange(1), default=100, show_default=True)
@click.option("--claimants", type=click.IntRange(2, 64), default=8, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 1000), default=64, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the jitter between the claimants.")
@json_option
def claims_races(bootstrap: str, rounds: int, claimants: int, partitions: int, seed: int, *, as_json: bool) -> int:
    """
    Have claimants race for the same partitions, round after round, on a claims topic made for it.

    Afterwards the log is read with code of its own: each partition has one owner in each round, the one whose claim
    stands first, and nobody believes otherwise. Exit 1 if that is not so.

    \b
    Examples:
      python -m proof claims-races
      python -m proof claims-races --rounds 1000 --json
    """  # noqa: D301 - click's own mark
    connection, topic = connected(bootstrap), f"brew.claims-races-{uuid.uuid4().hex[:8]}"
    with Progress(console=Console(stderr=True), disable=as_json) as bar:
        task = bar.add_task("rounds", total=rounds)
        found = race(
            connection,
            topic,
            rounds=rounds,
            claimants=claimants,
            partitions=partitions,
            seed=seed,
            advance=lambda: bar.advance(task),
        )
    if as_json:
        say_json(_document(found))
    else:
        click.echo(_text(found))
    return ExitCode.VIOLATION if found.findings else ExitCode.DONE


def _document(found: Races) -> dict[str, object]:
    return {
        "rounds": found.rounds,
        "claimants": found.claimants,
        "partitions": found.partitions,
        "messages": found.messages,
        "seconds": round(found.seconds, 3),
        "wins": dict(sorted(found.wins.items())),
        "owned_after_s": {"p50": _share(found, 0.5), "p99": _share(found, 0.99), "max": _share(found, 1.0)},
        "findings": found.findings,
    }


def _share(found: Races, share: float) -> float:
    """The time within which this share of the rounds had an owner for every partition."""
    times = sorted(found.owned_after_s)
    return round(times[min(len(times) - 1, int(share * len(times)))], 4)


def _text(found: Races) -> str:
    grants = sum(found.wins.values())
    lines = [
        f"{found.rounds} rounds, {found.claimants} claimants, {found.partitions} partitions",
        f"{grants} claims granted, {found.messages} messages, {found.seconds:.1f} s",
        f"all partitions owned after {_share(found, 0.5):g} s (p50), {_share(found, 1.0):g} s (longest)",
        "wins: " + ", ".join(f"{name} {count}" for name, count in sorted(found.wins.items())),
    ]
    if found.findings:
        lines += [f"{len(found.findings)} findings:", *found.findings[:_SHOWN]]
    else:
        lines.append("one owner each, the earliest claim in the log, and nobody believed otherwise")
    return "\n".join(lines)
