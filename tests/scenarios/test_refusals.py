"""What ends in one sentence: refusals with 3, wrong usage with 64, soon and without a stack trace."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from harness.operate import pipeline
from harness.pipeline import Ran, Stage

from brew.names import ExitCode

LONGEST_S = 15.0  # as it was set for a quiet machine on 2026-11-21


def refused(ran: Ran, *words: str) -> tuple[int, list[str]]:
    """The exit code, and which of these words the sentence lacks; it has no stack trace and comes soon."""
    for trace in ("Traceback", "at org.apache", "at java.", "py4j"):
        assert trace not in ran.text, ran.text
    assert len(ran.err.strip().splitlines()) <= 4, ran.err
    assert ran.seconds < LONGEST_S
    return ran.code, [f"{word} is not said: {ran.text}" for word in words if word not in ran.err]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--master", "mesos://x"], ["MASTER", "mesos://x", "local[*]"]),
        (["--crash-prob", "7"], ["CRASH_PROB", "7", "between 0 and 1"]),
        (["--crash-prob", "often"], ["--crash-prob"]),
        (["--crash-point", "nowhere"], ["--crash-point", "after-flush"]),
        (["--dead-letter", "same", "--output", "same"], ["same", "three topics"]),
        (["--input", "no/topic"], ["INPUT_TOPIC", "no/topic"]),
        (["--unknown-option"], ["--unknown-option"]),
        (["--conf", "executor.cores"], ["--conf", "executor.cores"]),
        (["--transaction-timeout", "0"], ["--transaction-timeout", "between"]),
    ],
    ids=lambda words: "=".join(words[:2]) if words[0].startswith("--") else "",
)
def test_wrong_usage_ends_with_64_before_anything_starts(stage: Stage, options: list[str], words: list[str]) -> None:
    """The sentence names the setting and what it should be."""
    code, output = pipeline(stage, "run", *options)
    assert refused(Ran(code, "", output, 0.0), *words) == (ExitCode.USAGE, [])


def test_make_hands_wrong_usage_on(stage: Stage) -> None:
    """CRASH_PROB=7 on make's command line is refused by the program, whose exit code make reports."""
    ran = stage.make("run-pipeline-crash", CRASH_PROB="7")
    assert refused(ran, "CRASH_PROB", "7", "between 0 and 1") == (2, [])
    assert f"Error {int(ExitCode.USAGE)}" in ran.err


def test_no_broker_no_topic_and_no_master_are_refused_with_3(stage: Stage) -> None:
    """Each says what was not found, and what to do."""
    nowhere = ("--bootstrap", "localhost:1")
    with (
        stage.python("pipeline", "run", *nowhere) as run,
        stage.python("proof", "verify", *nowhere) as proof,
        stage.python("downstream", "count", *nowhere) as downstream,
    ):
        for program in (run, proof, downstream):
            assert refused(program.wait(60), "localhost:1", "make up") == (ExitCode.REFUSED, [])
    assert refused(stage.pipeline(), stage.names.input, "make topic-create-all") == (ExitCode.REFUSED, [])
    stage.create(1)
    stage.seed(3)
    ran = stage.pipeline("--master", "spark://localhost:1")
    assert refused(ran, "spark://localhost:1", "MASTER") == (ExitCode.REFUSED, [])


def test_vanished_offsets_end_with_3_and_restore_goes_on_exactly_once(stage: Stage) -> None:
    """Kafka's own tool deletes the group's offsets; the sentence names both ways out, and the first one holds."""
    stage.create(2)
    stage.seed(40)
    stage.drain_locally()
    output = stage.tool(
        "kafka-consumer-groups", "--delete-offsets", "--group", stage.names.group, "--topic", stage.names.input
    )
    assert "Successful" in output, output
    stage.seed(10)
    ran = stage.pipeline()
    assert refused(ran, "offsets-vanished", "--on-missing-position restore", "start-over") == (ExitCode.REFUSED, [])
    assert stage.outputs() == 40
    stage.drain_locally("--on-missing-position", "restore")
    stage.proven(inputs=50, outputs=50)


def test_a_range_that_retention_took_ends_with_3_and_names_it(stage: Stage) -> None:
    """What is lost is said with its offsets before a single record is written."""
    stage.create(1)
    stage.seed(10)
    stage.drain_locally()
    stage.seed(10)
    stage.admin.delete_records([TopicPartition(stage.names.input, 0, 13)])[
        TopicPartition(stage.names.input, 0, 13)
    ].result(20)
    ran = stage.pipeline("--master", "none")
    assert refused(ran, "input-lost", "[10, 13) are gone", "--to-earliest") == (ExitCode.REFUSED, [])
    assert stage.outputs() == 10
