"""The options of a consumer that takes partitions by claim."""

from __future__ import annotations

from typing import Any

import click

from downstream.claims.settings import ClaimsSettings, Flow, fresh_client_id
from protocol.claims.member import INTERVAL_S
from protocol.names import CLAIMS_TOPIC, checked_topic

CLAIMS = (
    click.option(
        "--claims", default=CLAIMS_TOPIC, show_default=True, metavar="TOPIC", help="The log of claims; made if missing."
    ),
    click.option(
        "--client-id",
        metavar="NAME",
        help="Stable over restarts, to take partitions back at once  [default: a fresh one]",
    ),
    click.option(
        "--heartbeat-interval-s",
        type=float,
        default=INTERVAL_S,
        show_default=True,
        help="Claims: others take over two of these after the last heartbeat.",
    ),
    click.option(
        "--flow",
        type=click.Choice([str(one) for one in Flow]),
        default=str(Flow.AT_LEAST_ONCE),
        show_default=True,
        help="Claims: whether a crash repeats an interval's work, or drops what was begun.",
    ),
)


def claims_settings(given: dict[str, Any]) -> ClaimsSettings:
    """The settings from a command's parameters; raises `UsageError` where they can't be."""
    return ClaimsSettings(
        checked_topic(given["claims"], "--claims"),
        given["client_id"] or fresh_client_id(),
        given["heartbeat_interval_s"],
        Flow(given["flow"]),
    )
