"""The crash story, told with the make targets that everybody uses."""

from __future__ import annotations

import re

from harness.pipeline import PARTITIONS, Ran, Stage

CRASH_LINE = re.compile(r"^💥 crash before commit: (\d+) records? already in output log$", re.MULTILINE)
COUNTED = re.compile(r"^(\d+) records?, (\d+) unique keys?, (\d+) duplicates?", re.MULTILINE)
LONGEST_FENCE_S = 40.0


def counted(ran: Ran) -> tuple[int, int, int]:
    """Records, unique keys, duplicates."""
    match = COUNTED.search(ran.out)
    assert match is not None, ran.text
    return int(match[1]), int(match[2]), int(match[3])


def prepared(stage: Stage, orders: int) -> None:
    assert stage.make("topic-create-all", PARTITIONS=str(PARTITIONS)).code == 0
    seeded = stage.make("seed", SEED_COUNT=str(orders))
    assert seeded.code == 0
    assert f"{orders} orders on {stage.names.input} ({PARTITIONS} partitions)" in seeded.out


def agrees_with_kafkas_own_tool(stage: Stage) -> None:
    """`kafka-consumer-groups --describe` shows the same positions and no lag."""
    output = stage.tool("kafka-consumer-groups", "--describe", "--group", stage.names.group)
    rows = [line.split() for line in output.splitlines() if stage.names.input in line.split()]
    ends = {p: log.end for p, log in stage.logs(stage.names.input).items()}
    assert {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows} == {
        p: (end, end, 0) for p, end in ends.items()
    }


def test_a_certain_crash_leaves_what_it_says_and_the_next_run_fences_it_at_once(stage: Stage) -> None:
    """The story: 30 orders, a crash with N records in the log, 0 seen or N seen, a second run, 30 seen or 30 + N."""
    prepared(stage, 30)
    assert stage.make("topic-create-all", PARTITIONS=str(PARTITIONS)).code == 0, "a second time is harmless"

    crash = stage.make("run-pipeline-crash", CRASH_PROB="1.0")
    assert crash.code == 2, crash.text
    assert re.search(r"run-pipeline-crash\] .*2$", crash.err, re.MULTILINE), "make reports the pipeline's exit code"
    match = CRASH_LINE.search(crash.out)
    assert match is not None, crash.text
    left = int(match[1])
    assert left > 0
    opened = len(stage.open_transactions())
    assert 1 <= opened <= PARTITIONS, "the run ends with its first crash; others may not have had their turn"

    committed = stage.make("run-downstream")
    assert (committed.code, counted(committed)) == (0, (0, 0, 0))
    assert f"{left} records are above the last stable offset" in committed.out
    uncommitted = stage.make("run-downstream-ru")
    assert (uncommitted.code, counted(uncommitted)[0]) == (0, left)

    # The broker would abort the dead run's transactions after 60 s; nobody waits for that.
    healed = stage.make("run-pipeline-crash", CRASH_PROB="0")
    assert healed.code == 0, healed.text
    assert healed.seconds < LONGEST_FENCE_S
    assert "30 records: 30 enriched" in healed.out

    assert counted(stage.make("run-downstream")) == (30, 30, 0)
    assert counted(stage.make("run-downstream-ru"))[0] == 30 + left

    described = stage.make("group-describe")
    assert described.code == 0
    assert re.search(r"^│ all +│.*│ +0 │ +0 │$", described.out, re.MULTILINE), described.out
    agrees_with_kafkas_own_tool(stage)

    ends = stage.make("end-offsets")
    assert ends.code == 0
    _, partitions = stage._proof("end-offsets", "--bootstrap", stage.broker.bootstrap, "--topic", stage.names.output)
    assert sum(one["visible"] for one in partitions) == 30
    assert sum(one["aborted"] for one in partitions) == left
    assert sum(one["control"] for one in partitions) == opened + PARTITIONS
    assert sum(one["open"] + one["waiting"] for one in partitions) == 0

    verified = stage.make("verify")
    assert verified.code == 0
    assert "30 inputs = 30 outputs + 0 dead letters" in verified.out
    assert re.search(r"^proven ", verified.out, re.MULTILINE)
    stage.proven(inputs=30, outputs=30)


def test_a_hundred_orders_survive_crashes_by_chance(stage: Stage) -> None:
    """Crash probabilities 0.3, 0.3 and 0: whatever the dice say, 100 records, 100 unique keys, 0 duplicates."""
    prepared(stage, 100)
    # The other story starts Spark twice; here once, and two runs of the same kernel do without.
    for probability, master in (("0.3", "local[*]"), ("0.3", "none")):
        ran = stage.make("run-pipeline-crash", CRASH_PROB=probability, MASTER=master)
        assert ran.code == (2 if "💥" in ran.out else 0), ran.text
    assert stage.make("run-pipeline-crash", CRASH_PROB="0", MASTER="none").code == 0
    assert counted(stage.make("run-downstream")) == (100, 100, 0)
    assert stage.make("verify").code == 0
    stage.proven(inputs=100, outputs=100)

    # The check of the check: one record written again by hand, and `make verify` says where it is.
    record = stage.records(stage.names.output)[42]
    stage.produce(
        stage.names.output, (record.partition(), record.key(), record.value(), record.headers(), record.timestamp()[1])
    )
    spoiled = stage.make("verify")
    assert (spoiled.code, "Error 1" in spoiled.err) == (2, True), spoiled.text
    assert f"duplicate-output: {stage.names.output}[{record.partition()}] offset" in spoiled.out
    assert stage.make("run-downstream").code == 2, "the counter finds it too"
