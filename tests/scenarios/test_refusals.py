"""What ends in one sentence: refusals with 3, wrong usage with 64, soon and without a stack trace."""

from __future__ import annotations

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
