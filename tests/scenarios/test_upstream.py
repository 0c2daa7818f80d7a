"""An upstream producer that hangs in the middle of its transaction."""

from __future__ import annotations

from harness.pipeline import Stage, until


def test_a_hanging_upstream_transaction_is_named_and_waited_for(stage: Stage) -> None:
    """The run works up to the last stable offset, says who blocks the rest, and ends once that is resolved."""
    stage.create()
    stage.seed(90, "--transactional", "--markers-only-partition", "1", "--leave-open", "--transaction-timeout-s", "600")
    hanging = f"seed:{stage.names.input}:open"
    logs = stage.logs(stage.names.input)
    assert all(log.last_stable < log.end for log in logs.values())
    with stage.follow("--master", "none", "--max-records-per-transaction", "20") as program:
        note = program.await_line(lambda line: '"event":"note"' in line and "blocked" in line)
        assert hanging in note
        until(lambda: stage.outputs() == 90, "all that is visible")
        until(
            lambda: stage.committed() == {p: log.last_stable for p, log in logs.items()}, "positions at the stable end"
        )
        code, report = stage.verify()
        assert (code, report["totals"], report["inputs"]) == (3, {}, 90), "not proven while something is held back"
        assert program.alive()
        with stage.python("proof", "resolve", "--bootstrap", stage.broker.bootstrap,
                          "--transactional-id", hanging) as resolve:  # fmt: skip
            assert resolve.wait().code == 0
        ran = program.wait()
    assert ran.code == 0, ran.text
    assert "Traceback" not in ran.text
    stage.proven(inputs=90, outputs=90)
