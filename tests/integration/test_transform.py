"""A function of a record, run by both readers against a real broker, and proven by calling it again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness.operate import json_of
from harness.pipeline import DIRECT, READERS, DrainView, Stage, environment, quick_executors, quick_jvms, until
from harness.servers import Broker, Names

import brew
from brew.errors import Refused, TransformFailed
from brew.offsets import SourcePosition
from brew.outcome import Status
from brew.pipeline import RunStatus
from brew.records import ERROR_EXCEPTION, ERROR_REASON

EXAMPLE = Path(__file__).parents[1] / "unit" / "clicks_example.py"
ADD_DOMAIN, IN_BATCHES = f"{EXAMPLE}:add_domain", f"{EXAMPLE}:add_domain_in_batches"
PLAIN, DROP, FAN_OUT, LATE, NO_URL = "plain", "drop", "fan-out", "late", "no-url"
KINDS = (PLAIN, DROP, FAN_OUT, LATE, NO_URL, PLAIN)
EXPLAINED = (
    ("delivered", "delivered once, to it-", 1),
    ("dropped", "transformation drops it", 0),
    ("delivered", "3 outputs", 3),
    ("delivered", "to late.", 1),
    ("rejected", "no-url", 1),
)
"""What `brew explain` answers of the first of each kind: answer, words of why, copies. One output has another key."""
ERROR = "error"


@pytest.fixture(params=READERS)
def stage(broker: Broker, names: Names, request: pytest.FixtureRequest) -> Stage:
    return Stage(broker, names, reader=request.param)


def click_value(stage: Stage, kind: str) -> bytes:
    url = {} if kind == NO_URL else {"url": f"http://{kind}.example/x"}
    return orjson.dumps({"kind": kind, "topic": f".{stage.names.stem}", **url})


def late_topic(stage: Stage) -> str:
    return f"late.{stage.names.stem}"


def write_clicks(stage: Stage, *kinds: str, partitions: int = 3) -> None:
    records = [(i % partitions, b"k%d" % i, click_value(stage, kind), [("h", b"1")]) for i, kind in enumerate(kinds)]
    stage.produce(stage.names.input, *records)


def create_with_clicks(stage: Stage, *kinds: str, partitions: int = 1) -> None:
    stage.create(partitions)
    write_clicks(stage, *kinds, partitions=partitions)


def options(stage: Stage, function: str = ADD_DOMAIN) -> list[str]:
    return ["--transform", function, "--also-output", late_topic(stage)]


def verify(stage: Stage, function: str = ADD_DOMAIN, *more: str) -> tuple[int, Any]:
    return stage._proof("verify", *stage.options(), *options(stage, function), "--settled", *more)


def proven(stage: Stage, function: str = ADD_DOMAIN, **expected: int) -> None:
    code, report = verify(stage, function)
    assert code == 0, report
    counts = {**report, **report["counts"]}
    assert {name: counts[name] for name in expected} == expected


def test_drop_fan_out_route_and_reject_come_out_exactly_once_and_are_proven(stage: Stage) -> None:
    """Every input is accounted for, also over several transactions and a second run."""
    create_with_clicks(stage, *KINDS * 20, partitions=3)
    run = stage.drain(*options(stage), "--max-records-per-transaction", "15")
    totals = run.progress.totals
    assert (totals.enriched, totals.rejected, totals.dropped, totals.written) == (80, 20, 20, 120)
    assert run.progress.reasons == {"no-url": 20}
    proven(stage, inputs=120, transformed=80, dropped=20, dead_letters=20, outputs=120)
    assert len(stage.records(late_topic(stage))) == 20
    sources = Counter(str(SourcePosition.of(record.headers())) for record in stage.records(stage.names.output))
    assert (len(sources), set(sources.values())) == (100, {1})
    for number, (answer, why, copies) in enumerate(EXPLAINED):
        (order,) = json_of(stage, "explain", f"k{number}", *options(stage))["orders"]
        assert (order["answer"], len(order["copies"]), why in order["why"]) == (answer, copies, True), order
    late = json_of(stage, "explain", f"{late_topic(stage)}/0/0", *options(stage))["orders"]
    assert late[0]["order"] == f"{stage.names.input}/0/1"

    write_clicks(stage, *KINDS)
    assert stage.drain(*options(stage)).progress.totals.records == 6
    proven(stage, inputs=126)


def test_a_function_of_batches_does_the_same(stage: Stage) -> None:
    create_with_clicks(stage, *(PLAIN, DROP, FAN_OUT, NO_URL) * 25, partitions=3)
    totals = stage.drain(*options(stage, IN_BATCHES)).progress.totals
    assert (totals.enriched, totals.rejected, totals.dropped, totals.written) == (50, 25, 25, 100)
    proven(stage, IN_BATCHES, inputs=100, transformed=50, dropped=25, dead_letters=25, outputs=100)


@pytest.mark.parametrize("function", [ADD_DOMAIN, IN_BATCHES])
def test_an_exception_ends_the_run_by_its_record_and_nothing_of_the_range_is_visible(
    stage: Stage, function: str
) -> None:
    """The position stays where it was, so a corrected function goes on there."""
    create_with_clicks(stage, PLAIN, FAN_OUT, ERROR, PLAIN)
    with pytest.raises(TransformFailed) as failed:
        stage.drain(*options(stage, function), view=(run := DrainView()))
    for text in ("raised KeyError: 'nowhere'", f"{stage.names.input}[0] offset 2", "nothing of", "--on-error"):
        assert text in str(failed.value)
    assert Status.TRANSFORM_FAILED in run.statuses()
    assert stage.records(stage.names.output) == []
    stage.nothing_open()

    totals = stage.drain(*options(stage, function), "--on-error", "dead-letter").progress.totals
    assert (totals.enriched, totals.rejected) == (3, 1)
    (dead,) = stage.records(stage.names.dead_letter)
    headers = dict(dead.headers() or ())
    assert (headers[ERROR_REASON], headers[ERROR_EXCEPTION]) == (b"transform-error", b"KeyError")
    proven(stage, function, inputs=4, transformed=3, dead_letters=1, outputs=5)


def test_a_run_that_rejects_all_says_so_by_the_functions_reason(stage: Stage) -> None:
    create_with_clicks(stage, *[NO_URL] * 100)
    with pytest.raises(Refused, match=r"all-rejected: the first 100 records were all rejected, 100 of them as no-url"):
        stage.drain(*options(stage))


def test_a_topic_that_was_not_named_ends_the_run_with_the_option_to_add(stage: Stage) -> None:
    create_with_clicks(stage, LATE)
    with pytest.raises(TransformFailed, match=rf"--also-output {late_topic(stage)}"):
        stage.drain("--transform", ADD_DOMAIN)
    assert stage.records(stage.names.output) == []


def test_output_that_went_to_another_topic_alone_is_found_when_the_position_is_gone(stage: Stage) -> None:
    """Else a run without its offsets would write all of it again: the output topic itself holds none of it."""
    create_with_clicks(stage, *[LATE] * 5)
    stage.drain(*options(stage))
    position = ("--group", stage.names.group, "--topic", stage.names.input)
    stage.tool("kafka-consumer-groups", *position, "--delete-offsets")
    with pytest.raises(Refused, match="offsets-vanished"):
        stage.drain(*options(stage))
    stage.drain(*options(stage), "--on-missing-position", "restore")
    proven(stage, inputs=5, outputs=5)


# The proof is red where something is wrong.


@pytest.mark.parametrize("stage", [DIRECT], indirect=True)  # the proof does not ask who read
def test_another_value_than_the_functions_is_red(stage: Stage) -> None:
    """The run is right, and the function that proves it is another one."""
    create_with_clicks(stage, PLAIN, PLAIN)
    stage.drain(*options(stage))
    code, report = verify(stage, f"{Path(__file__)}:another")
    assert (code, report["totals"]) == (1, {"corrupt-output": 2})


def another(record: brew.Record) -> brew.Record:
    return record.with_value(b"other")


# Programs, and where the function may be.


def test_a_typo_is_refused_before_a_broker_or_spark_is_asked(broker: Broker, names: Names) -> None:
    stage = Stage(broker, names)
    ran = stage.pipeline("--transform", f"{EXAMPLE}:add_domian", "--bootstrap", "127.0.0.1:1", seconds=20)
    assert ran.code == 64, ran.text
    assert "has no 'add_domian'; did you mean 'add_domain'?" in ran.err


def test_a_file_of_the_current_folder_runs_on_executors_that_have_no_such_file(
    broker: Broker, names: Names, tmp_path: Path
) -> None:
    """`local-cluster` has executors in processes and folders of their own."""
    stage = Stage(broker, names)
    create_with_clicks(stage, *KINDS * 5, partitions=2)
    shutil.copy(EXAMPLE, tmp_path / "my_clicks.py")
    command = [sys.executable, "-m", "pipeline", "run", *stage.options(), "--transform", "my_clicks:add_domain"]
    command += ["--also-output", late_topic(stage), "--master", "local-cluster[1,2,1024]", "--patience", "300"]
    command += quick_executors()
    variables = {**environment(names.stem), **quick_jvms()}
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "20 transformed into 30, 5 rejected, 5 dropped" in ran.stdout
    proven(stage, inputs=30, transformed=20)


# From a script.


def test_a_script_runs_a_closure_and_gets_the_counts(stage: Stage) -> None:
    """Names that nobody gave follow from the output's."""
    create_with_clicks(stage, *(PLAIN, PLAIN, NO_URL, DROP), partitions=2)
    suffix = b"!"

    def shout(record: brew.Record) -> brew.Record | None:
        kind = record.json()["kind"]
        if kind == NO_URL:
            raise brew.Reject("quiet")
        return None if kind == DROP else record.with_value(kind.encode() + suffix)

    settings: dict[str, Any] = {"bootstrap": stage.broker.bootstrap, "master": "local[2]", "reader": stage.reader}
    pipeline = brew.Pipeline(input=stage.names.input, output=stage.names.output, transform=shout, **settings)
    result = pipeline.run()
    assert (result.transformed, result.rejected, result.dropped, result.written) == (2, 1, 1, 2)
    assert (result.records, result.reasons) == (4, {"quiet": 1})
    assert [record.value() for record in stage.records(stage.names.output)] == [b"plain!"] * 2
    assert len(stage.records(f"{stage.names.output}.dlq")) == 1
    assert pipeline.run().records == 0


def test_a_module_given_to_py_files_may_hold_what_can_not_be_serialized(stage: Stage, tmp_path: Path) -> None:
    """It travels by name, as a wheel does."""
    source = "import threading\nLOCK = threading.Lock()\ndef f(record):\n    with LOCK:\n        return record\n"
    (file := tmp_path / f"locked_{stage.reader}.py").write_text(source)
    create_with_clicks(stage, PLAIN)
    settings: dict[str, Any] = {"bootstrap": stage.broker.bootstrap, "master": "local[1]", "reader": stage.reader}
    settings |= {"input": stage.names.input, "output": stage.names.output}
    assert brew.Pipeline(transform=f"{file}:f", py_files=file, **settings).run().transformed == 1


def test_a_run_in_the_background_is_watched_and_stopped(broker: Broker, names: Names) -> None:
    stage = Stage(broker, names)
    create_with_clicks(stage, PLAIN, PLAIN, partitions=2)
    settings: dict[str, Any] = {"bootstrap": broker.bootstrap, "master": "none"}
    pipeline = brew.Pipeline(
        input=names.input, output=names.output, transform=ADD_DOMAIN, also_output=[late_topic(stage)], **settings
    )
    with pipeline.start() as run:
        until(lambda: run.status.result.transformed == 2, "both clicks")
        write_clicks(stage, FAN_OUT, partitions=1)
        until(lambda: run.status.result.written == 5, "the third one")
        assert (run.status.state, run.status.lag) == ("working", 0)
        with pytest.raises(brew.BrewError, match="still runs after"):
            run.wait(0.01)
        assert run.stop().transformed == 3
    assert isinstance(run.status, RunStatus)
    assert run.status.state == "stopped"
    assert stage.open_transactions() == []


def test_a_function_that_raises_ends_the_background_run_and_wait_tells_why(broker: Broker, names: Names) -> None:
    stage = Stage(broker, names)
    create_with_clicks(stage, ERROR)
    settings: dict[str, Any] = {"bootstrap": broker.bootstrap, "master": "none"}
    run = brew.Pipeline(input=names.input, output=names.output, transform=ADD_DOMAIN, **settings).start()
    with pytest.raises(TransformFailed, match="KeyError"):
        run.wait(60)
    assert run.status.state == "failed"
    assert stage.records(names.output) == []
