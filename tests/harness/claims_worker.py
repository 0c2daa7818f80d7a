"""
A worker that takes partitions by claim and records what it worked on: `python -m harness.claims_worker`.

One line per record, `<client> <partition> <offset>`, written with one call per slice, after its work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from brew.cli import client_config_option, connection, run
from brew.deadline import Deadline
from brew.signals import stop_on_signals
from downstream.consume.handler import (
    GRACE_S,
    AssignedPartition,
    ClaimsSettings,
    DeliverySemantics,
    HandlerContext,
    LoopSettings,
    PartitionBatch,
)
from downstream.consume.loop import Loop


class RecordingHandler:
    """Works for ``work_s`` on each slice, then records it; starts at the committed offset, or at the first one."""

    def __init__(self, client: str, effects: Path, work_s: float) -> None:
        self._client, self._work_s = client, work_s
        self._file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:  # noqa: ARG002 - the port's shape
        return {one.partition: one.first if one.committed is None else one.committed for one in assignments}

    def handle(self, slices: Sequence[PartitionBatch], lease: HandlerContext) -> None:
        for batch in slices:
            time.sleep(self._work_s)  # the work itself, during which kills must strike
            lines = [f"{self._client} {batch.partition} {record.offset()}\n" for record in batch.records]
            os.write(self._file, "".join(lines).encode())
            lease.report({batch.partition: batch.until})

    def tick(self, lease: HandlerContext) -> None: ...

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None: ...

    def lost(self, partitions: Collection[int]) -> None: ...

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002
        os.close(self._file)


@click.command()
@click.option("--bootstrap", required=True)
@client_config_option
@click.option("--topic", required=True)
@click.option("--group", required=True)
@click.option("--claims", required=True)
@click.option("--client-id", required=True)
@click.option("--interval-s", type=float, required=True)
@click.option(
    "--flow", type=click.Choice([str(one) for one in DeliverySemantics]), default=str(DeliverySemantics.AT_LEAST_ONCE)
)
@click.option("--work-s", type=float, default=0.03)
@click.option("--batch", type=int, default=20)
@click.option("--effects", type=click.Path(path_type=Path), required=True)
def worker(
    bootstrap: str,
    topic: str,
    group: str,
    claims: str,
    client_id: str,
    interval_s: float,
    flow: str,
    work_s: float,
    batch: int,
    effects: Path,
) -> None:
    """Work until SIGTERM."""
    settings = LoopSettings(
        connection(bootstrap),
        group,
        topic,
        follow=True,
        batch=batch,
        claims=ClaimsSettings(claims, client_id, interval_s, DeliverySemantics(flow)),
    )
    stop = threading.Event()
    stop_on_signals(stop, GRACE_S, follow=True)
    Loop(settings, RecordingHandler(client_id, effects, work_s), stop, lambda text: click.echo(text, err=True)).run()


if __name__ == "__main__":
    sys.argv[0] = "claims_worker"
    run(worker, "claims_worker")
