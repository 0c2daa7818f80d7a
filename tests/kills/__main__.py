"""`python -m tests.kills`: SIGKILL around the commit of the ledger and the receivers, 200 times each."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import enriched
from harness.downstream import LedgerStage, ReceiveStage
from harness.servers import Names, sandbox_broker
from harness.servers import store as running

from brew.cli import run
from brew.names import ExitCode
from downstream.receive.check import DUPLICATE
from proof.campaign.cell import PROVEN, VIOLATED, Result, campaign_metadata, write_file
from proof.provenance import MadeWith
from proof.report.results import STORE_KILLS
from sandbox.store import Postgres, Redis
from tests.kills.bugs import BUGS
from tests.kills.campaign import Killed, Stage, campaign

_ROWS = {"ledger": "F29", "postgres": "F29", "redis-script": "F32", "redis": "F32"}
_STORES = ("ledger", "postgres", "redis-script", "redis")
_ACCEPTED = {"redis": {DUPLICATE}}  # at least once, by design: its duplicates are only counted, but a loss is a fault


@click.command()
@click.argument("stores", nargs=-1, type=click.Choice(_STORES))
@click.option("--kills", type=click.IntRange(1), default=200, show_default=True, help="Number of kills for each store.")
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed.")
@click.option("--bug", help="Put this bug in: " + ", ".join(f"{s}: {' '.join(b)}" for s, b in BUGS.items()))
@click.option(
    "--out", type=click.Path(path_type=Path), help="File to write the result to, for `python -m proof report`."
)
def kills(stores: tuple[str, ...], kills: int, seed: int, bug: str | None, out: Path | None) -> int:
    """
    Kill consumers before, in and after their store's commit; then check every row, cent and effect.

    Starts Kafka, PostgreSQL (fsync on) and Redis of its own. Exit 1 when a check goes red.

    \b
    Examples:
      python -m tests.kills                        all, 200 kills each
      python -m tests.kills ledger --kills 20
      python -m tests.kills ledger --bug position-afterwards --kills 10
    """  # noqa: D301 - click's own mark
    results: dict[str, Killed] = {}
    began = datetime.now(UTC)
    with sandbox_broker() as broker, running(Postgres) as postgres, running(Redis) as redis:
        for store in stores or _STORES:
            names = Names.fresh(f"kills-{store}", seed)
            enriched.make_topic(broker.bootstrap, names.output)
            schema = "k_" + names.stem.rsplit("-", 1)[1]
            stage: Stage
            if store == "ledger":
                stage = LedgerStage(broker.bootstrap, postgres.url, names.output, names.group, schema)
            elif store == "postgres":
                stage = ReceiveStage(broker.bootstrap, names.output, names.group, postgres.url, schema)
            else:
                stage = ReceiveStage(broker.bootstrap, names.output, names.group, redis=redis.url)
            with Progress(console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task(store, total=kills)
                results[store] = campaign(stage, store, kills, seed, bug=bug, advance=lambda t=task: bar.advance(t))
            click.echo(_line(store, results[store]))
    if out is not None:
        made, seconds = MadeWith.now(), sum(one.seconds for one in results.values())
        metadata = campaign_metadata(shlex.join(["kills", *sys.argv[1:]]), began, seconds, [seed], made)
        write_file(out, metadata, [result(store, one, kills, seed, began, made) for store, one in results.items()])
    red = any(one.findings.keys() - _ACCEPTED.get(name, set()) for name, one in results.items())
    return ExitCode.VIOLATION if red else ExitCode.DONE


def result(store: str, killed: Killed, wanted: int, seed: int, began: datetime, made: MadeWith) -> Result:
    """Return one store's kills as a cell, for `proof report`; duplicates of an at-least-once store are a note."""
    accepted = _ACCEPTED.get(store, set())
    wrong = {name: count for name, count in killed.findings.items() if name not in accepted}
    notes = [f"{count} {name}, at least once by design" for name, count in killed.findings.items() if name in accepted]
    return Result(
        cell=f"{_ROWS[store]}-kills-{store}",
        row=_ROWS[store],
        fault="SIGKILL",
        target=store,
        moment="around the store's commit",
        path=STORE_KILLS,
        seed=seed,
        verdict=VIOLATED if wrong else PROVEN,
        began=began.isoformat(timespec="seconds"),
        seconds=round(killed.seconds, 2),
        bound_s=None,
        fired={"kills": sum(killed.kills.values()), **{f"kills_{moment}": n for moment, n in killed.kills.items()}},
        needed={"kills": wanted},
        counts={"orders": killed.orders},
        anomalies=[{"name": name, "evidence": f"{count} of them"} for name, count in wrong.items()],
        note="; ".join(notes),
        commit=made.commit,
        kernel=made.kernel,
        versions=made.versions,
    )


def _line(store: str, killed: Killed) -> str:
    died = ", ".join(f"{count} {moment}" for moment, count in sorted(killed.kills.items()))
    found = ", ".join(f"{count} {name}" for name, count in killed.findings.items()) or "nothing found"
    total = sum(killed.kills.values())
    money = f", {killed.report['booked_cents']} of {killed.report['cents']} cents" if "cents" in killed.report else ""
    if "duplicates" in killed.report:
        money = f", {killed.report['duplicates']} duplicates among {killed.report['effects']} effects"
    return f"{store}: {total} kills ({died}) over {killed.orders} orders in {killed.seconds:.0f} s: {found}{money}"


if __name__ == "__main__":
    run(kills, "tests.kills")
