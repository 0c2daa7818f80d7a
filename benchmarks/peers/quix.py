"""
The quix-streams peer: an application with the exactly-once guarantee that commits every 100 ms, until SIGTERM.

Runs in a venv of its own (`build.sh`). `to_topic` chooses the partition by the key, so records are sent by the
application's producer, in its transaction. The stable transactional id fences what a dead run left open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from quixstreams import Application, message_context

sys.path.append(str(Path(__file__).resolve().parents[2]))

from shared import CONSUMER, PRODUCER, enrich

from brew.names import ExitCode
from brew.offsets import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC
from brew.records import ERROR_REASON

_POLL_S = 0.02

Headers = list[tuple[str, bytes | None]] | None
Step = Callable[[bytes | None, bytes | None, int, Headers], None]


def application(bootstrap: str, group: str, instance: str, commit_s: float, home: str) -> Application:
    static = {"group.instance.id": instance} if instance else {}
    return Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=commit_s,
        consumer_poll_timeout=_POLL_S,  # an idle application commits only after its poll
        auto_create_topics=False,
        use_changelog_topics=False,
        state_dir=home,
        loglevel="WARNING",
        consumer_extra_config={**CONSUMER, **static},
        producer_extra_config={**PRODUCER, "transactional.id": group},
    )


def step(producer: Any, source: str, output: str, dead_letter: str) -> Step:
    """Return the function applied to each order."""
    topic = source.encode()

    def place(value: bytes | None, key: bytes | None, timestamp: int, headers: Headers) -> None:
        order = message_context()
        made = enrich(key, value)
        marked = list(headers or [])
        if type(made) is bytes:
            target, value = output, made
        else:
            target = dead_letter
            marked.append((ERROR_REASON, str(made).encode()))
        marked += (
            (HEADER_TOPIC, topic),
            (HEADER_PARTITION, b"%d" % order.partition),
            (HEADER_OFFSET, b"%d" % order.offset),
        )
        producer.produce(target, value, key, marked, order.partition, timestamp)

    return place


@click.command()
@click.option("--bootstrap", required=True, help="Kafka's bootstrap servers.")
@click.option("--input", "source", required=True, help="Topic to read.")
@click.option("--output", required=True, help="Topic to write.")
@click.option("--dead-letter", required=True, help="Topic for rejected records.")
@click.option("--group", required=True, help="Consumer group, which is also the transactional id.")
@click.option("--state-dir", "home", required=True, help="Directory for state stores, of which there are none.")
@click.option("--instance", default="", help="Id of a static member of the group  [default: a dynamic member]")
@click.option("--commit-s", default=0.1, show_default=True, help="Seconds between two commits.")
def main(
    bootstrap: str, source: str, output: str, dead_letter: str, group: str, home: str, instance: str, commit_s: float
) -> None:
    """Enrich orders with quix-streams, for comparison."""
    app = application(bootstrap, group, instance, commit_s, home)
    orders = app.dataframe(app.topic(source, key_deserializer="bytes", value_deserializer="bytes"))
    orders.update(step(orders.processing_context.producer, source, output, dead_letter), metadata=True)
    app.run()  # stops by itself on SIGTERM


if __name__ == "__main__":
    main(standalone_mode=False)
    sys.exit(ExitCode.DONE)
