"""
The commands of `brew`: the program each belongs to, where it is defined, and its line in the list.

Names: the commands of `pipeline`, `downstream` and `proof` are at the top level, those of `sandbox` below `brew
sandbox`. `setup` is the only name that two programs share: `brew setup` fetches Spark's jars, `brew sandbox setup` a
broker. A few more names would mislead at the top level; `LEFT_OUT` says why, and where those commands are.
"""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """A command of `brew`: its program, where it is defined, and its line in the list."""

    program: str
    target: str
    help: str


SECTIONS: dict[str, dict[str, CommandEntry]] = {
    "Run": {
        "run": CommandEntry(
            "pipeline", "pipeline.__main__:run_command", "Drain the input topic and exit, or follow it."
        ),
        "submit": CommandEntry(
            "pipeline", "pipeline.__main__:submit_command", "Hand a run to spark-submit, on a cluster."
        ),
        "init": CommandEntry("brew", "brew.project:init", "Create a project: a function, its test, a Makefile."),
        "setup": CommandEntry("pipeline", "brew.spark.gateway:setup", "Fetch the jars with which Spark reads Kafka."),
        "config": CommandEntry(
            "pipeline", "brew.config_file:config", "Show each option's value, and where it comes from."
        ),
    },
    "Look": {
        "preflight": CommandEntry(
            "pipeline", "operations.preflight:preflight", "Check what a run needs of the cluster; writes nothing."
        ),
        "lag": CommandEntry("pipeline", "operations.lag:lag", "Show the lag and the state of each partition."),
        "explain": CommandEntry(
            "pipeline", "operations.explain.command:explain", "Explain where an order is, who sees it, and why."
        ),
        "show": CommandEntry("pipeline", "operations.show:show", "Show the records of a topic."),
        "xray": CommandEntry("pipeline", "operations.xray.command:xray", "Show the logs, offset by offset."),
        "ui": CommandEntry("pipeline", "operations.ui.server:ui", "Watch a group in a browser, live."),
        "top": CommandEntry("pipeline", "operations.ui.terminal:top", "Watch a group on the terminal, live."),
        "group-describe": CommandEntry(
            "proof", "proof.commands.inspect:group_describe", "Show the group's offsets, last stable offset and lag."
        ),
        "end-offsets": CommandEntry(
            "proof", "proof.commands.inspect:end_offsets", "Count visible, aborted, open and control records."
        ),
    },
    "Repair": {
        "doctor": CommandEntry(
            "pipeline", "operations.doctor:doctor", "Find hanging transactions; --abort aborts them."
        ),
        "dlq": CommandEntry("pipeline", "operations.dlq.command:dlq", "Count dead letters, show one, replay them."),
        "resolve": CommandEntry(
            "proof", "proof.commands.seed:resolve", "Abort the transaction that a dead producer left open."
        ),
    },
    "Beyond Kafka": {
        "count": CommandEntry(
            "downstream", "downstream.__main__:count_command", "Count records, unique keys and duplicates."
        ),
        "ledger": CommandEntry(
            "downstream", "downstream.ledger.command:ledger_command", "Book orders into PostgreSQL, each exactly once."
        ),
        "receive": CommandEntry(
            "downstream",
            "downstream.receive.command:receive_command",
            "Give points for orders, one effect per message.",
        ),
        "totals": CommandEntry(
            "downstream", "downstream.totals.command:totals_command", "Keep totals per customer and tier in Kafka."
        ),
        "call": CommandEntry(
            "downstream", "downstream.virtual.call:call_command", "Post every record to an HTTP service, N at a time."
        ),
        "claims": CommandEntry(
            "downstream",
            "downstream.claims.commands:claims_group",
            "Show and change who owns which partition, by claim.",
        ),
    },
    "Prove": {
        "topics": CommandEntry(
            "proof", "proof.commands.seed:topics", "Create the pipeline's five topics; existing ones are kept."
        ),
        "seed": CommandEntry("proof", "proof.commands.seed:seed", "Write orders to work on."),
        "seed-customers": CommandEntry("proof", "proof.commands.seed:seed_customers", "Write customers' profiles."),
        "verify": CommandEntry(
            "proof", "proof.commands.inspect:verify", "Prove that every record came out exactly once."
        ),
        "campaign": CommandEntry(
            "proof", "proof.commands.campaign:campaign", "Break things on purpose, and prove that nothing is lost."
        ),
        "report": CommandEntry("proof", "proof.commands.campaign:report", "Make a page of a campaign's results."),
        "claims-races": CommandEntry(
            "proof", "proof.commands.claims:claims_races", "Race for the same partitions, round after round."
        ),
        "proxy": CommandEntry(
            "proof", "proof.commands.wire:proxy", "Hold, drop, delay or cut frames between clients and brokers."
        ),
        "torn": CommandEntry("proof", "proof.commands.wire:torn", "Release a late frame inside the next transaction."),
    },
    "Servers": {
        "sandbox": CommandEntry(
            "sandbox", "sandbox.__main__:cli", "Start, stop and break real servers on this machine."
        ),
    },
}
COMMANDS = {name: listed for section in SECTIONS.values() for name, listed in section.items()}

LEFT_OUT = {
    "claims-member": ("proof", "only `claims-races` and the campaign start it"),
    "read": ("proof", "only the campaign starts it"),
    "replay": ("proof", "it repeats a cell of a campaign; dead letters are replayed by `brew dlq replay`"),
    "sink": ("downstream", "it is a server for trying `receive`, not a sink for Spark"),
}
"""Commands that `brew` does not have: name -> the program that has it, and why."""
