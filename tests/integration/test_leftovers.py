"""Programs leave nothing in the temporary folder, tests no topic, and `show --follow` shows what comes."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
from harness.pipeline import ROOT, Stage, environment
from harness.programs import Running
from harness.servers import STEP_S, delete_topics, make_topics

from brew.deadline import Deadline
from brew.kafka import topics
from brew.records import ERROR_REASON


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.create(2, orders=20)
    return stage


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """An empty temporary folder, for Python and for Java."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def start(stage: Stage, temporary: Path, *words: str) -> Running:
    java = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData"
    variables = {"TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": java, "XDG_CACHE_HOME": str(temporary.parent / "cache")}
    return Running([sys.executable, "-m", *words], environment(stage.names.stem) | variables)


def files_in(temporary: Path) -> list[str]:
    return sorted(path.name for path in temporary.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["pipeline", "run", "--master", "none"],
        ["pipeline", "run", "--master", "local[2]", "--reader", "connector"],
        ["proof", "verify"],
        ["pipeline", "top", "--once"],
    ],
    ids=lambda words: " ".join(words[1:]),
)
def test_a_program_leaves_nothing_in_the_temporary_folder(stage: Stage, temporary: Path, words: list[str]) -> None:
    with start(stage, temporary, *words, *stage.options()) as program:
        ran = program.wait(120)
    assert ran.code == 0 or words[1] == "verify", ran.text
    assert files_in(temporary) == []


def test_a_test_leaves_no_topic_on_its_worker_s_broker(stage: Stage) -> None:
    """What every test ends with; a broker that was given (`KAFKA_BOOTSTRAP`) keeps them."""
    kept = f"kept-{stage.names.stem}"
    make_topics(stage.connection, kept)
    assert stage.names.input in topics.names(stage.admin, Deadline(STEP_S))
    delete_topics(stage.broker)
    left = topics.names(stage.admin, Deadline(STEP_S))
    assert (kept in left, stage.names.input in left) == (True, stage.broker.cluster is None)


def test_the_live_view_leaves_nothing_in_the_temporary_folder(stage: Stage, temporary: Path) -> None:
    """Looked at once, and told to end."""
    with start(stage, temporary, "pipeline", "ui", *stage.options(), "--port", "0") as program:
        line = program.await_line(lambda line: line.startswith("live view at "))
        with urllib.request.urlopen(line.split()[-1], timeout=20) as page:
            assert page.status == 200
        program.terminate()
        ran = program.wait(60)
    assert ran.code in {0, 128 + signal.SIGTERM}, ran.text
    assert files_in(temporary) == []


def test_every_script_removes_its_temporary_folder() -> None:
    """However it ends: the demos make folders of their own."""
    scripts = [script for script in (ROOT / "scripts").glob("*.sh") if "mktemp" in script.read_text()]
    assert "story.sh" in [script.name for script in scripts], "the demos' own"
    assert [script.name for script in scripts if "trap " not in script.read_text()] == []


def test_show_follow_shows_what_is_written_while_it_runs(stage: Stage, temporary: Path) -> None:
    """Dead letters too: their bytes as they came, and the headers that tell why; it ends with SIGTERM."""
    stage.seed(4, "--bad-every", "2")
    with start(
        stage, temporary, "pipeline", "show", stage.names.dead_letter, "--bootstrap", stage.broker.bootstrap,
        "--follow", "--json", "--isolation", "read_committed",
    ) as program:  # fmt: skip
        stage.drain_locally()
        program.await_line(lambda line: line.startswith("{"), times=2)
        records = [json.loads(line) for line in program.output().splitlines() if line.startswith("{")]
        program.terminate()
        ran = program.wait(60)
    assert ran.code in {0, 128 + signal.SIGTERM}, ran.text
    assert len(records) == 2
    assert {record["fate"] for record in records} == {"committed"}
    assert all(ERROR_REASON in dict(record["headers"]) for record in records)
    assert files_in(temporary) == []
