"""
The commands of `brew`: the program each belongs to, where it is defined, and its line in the list. The commands of
`sandbox` are below `brew sandbox`, all others at the top level, without those that would mislead there (`LEFT_OUT`).
"""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """A command of `brew`: its program, where it is defined, and its line in the list."""

    program: str
    target: str
    help: str


# A line each: name, program, where it is defined, help.
_TABLES = {
    "Run": """
run pipeline pipeline.__main__:run_command Drain the input topic and exit, or follow it.
submit pipeline pipeline.__main__:submit_command Hand a run to spark-submit, on a cluster.
init brew brew.project:init Create a project: a function, its test, a Makefile.
setup pipeline brew.spark.gateway:setup Fetch the jars with which Spark reads Kafka.
config pipeline brew.config_file:config Show each option's value, and where it comes from.
""",
    "Look": """
preflight pipeline operations.preflight:preflight Check what a run needs of the cluster; writes nothing.
lag pipeline operations.lag:lag Show the lag and the state of each partition.
explain pipeline operations.explain.command:explain Explain where an order is, who sees it, and why.
show pipeline operations.show:show Show the records of a topic.
xray pipeline operations.xray.command:xray Show the logs, offset by offset.
ui pipeline operations.ui.server:ui Watch a group in a browser, live.
top pipeline operations.ui.terminal:top Watch a group on the terminal, live.
group-describe proof proof.commands.inspect:group_describe Show the group's offsets, last stable offset and lag.
end-offsets proof proof.commands.inspect:end_offsets Count visible, aborted, open and control records.
""",
    "Repair": """
doctor pipeline operations.doctor:doctor Find hanging transactions; --abort aborts them.
dlq pipeline operations.dlq.command:dlq Count dead letters, show one, replay them.
resolve proof proof.commands.seed:resolve Abort the transaction that a dead producer left open.
""",
    "Beyond Kafka": """
count downstream downstream.__main__:count_command Count records, unique keys and duplicates.
ledger downstream downstream.ledger.command:ledger_command Book orders into PostgreSQL, each exactly once.
receive downstream downstream.receive.command:receive_command Give points for orders, one effect per message.
totals downstream downstream.totals.command:totals_command Keep totals per customer and tier in Kafka.
call downstream downstream.virtual.call:call_command Post every record to an HTTP service, N at a time.
claims downstream downstream.claims.commands:claims_group Show and change who owns which partition, by claim.
""",
    "Prove": """
topics proof proof.commands.seed:topics Create the pipeline's five topics; existing ones are kept.
seed proof proof.commands.seed:seed Write orders to work on.
seed-customers proof proof.commands.seed:seed_customers Write customers' profiles.
verify proof proof.commands.inspect:verify Prove that every record came out exactly once.
campaign proof proof.commands.campaign:campaign Break things on purpose, and prove that nothing is lost.
report proof proof.commands.campaign:report Make a page of a campaign's results.
claims-races proof proof.commands.claims:claims_races Race for the same partitions, round after round.
proxy proof proof.commands.wire:proxy Hold, drop, delay or cut frames between clients and brokers.
torn proof proof.commands.wire:torn Release a late frame inside the next transaction.
""",
    "Servers": """
sandbox sandbox sandbox.__main__:cli Start, stop and break real servers on this machine.
""",
}


def _entries(table: str) -> dict[str, CommandEntry]:
    lines = (line.split(" ", 3) for line in table.strip().splitlines())
    return {name: CommandEntry(*words) for name, *words in lines}


SECTIONS = {section: _entries(table) for section, table in _TABLES.items()}
COMMANDS = {name: listed for section in SECTIONS.values() for name, listed in section.items()}

LEFT_OUT = {
    "claims-member": ("proof", "only `claims-races` and the campaign start it"),
    "read": ("proof", "only the campaign starts it"),
    "replay": ("proof", "it repeats a cell of a campaign; dead letters are replayed by `brew dlq replay`"),
    "sink": ("downstream", "it is a server for trying `receive`, not a sink for Spark"),
}
"""Commands that `brew` does not have: name -> the program that has it, and why."""
