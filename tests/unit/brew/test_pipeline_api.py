"""`brew.Pipeline` before anything runs: what it refuses, and what its settings are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click
import pytest

import brew
from brew import names, pipeline
from brew.driver import coordination
from brew.errors import DeadlineExceeded, Refused, UsageError
from brew.options import run_options
from brew.settings import ClaimsSettings, OnError, OnMissingPosition, Reader
from brew.transformation import FunctionTransformation, transformation


def pipeline_of(**more: Any) -> brew.Pipeline:
    return brew.Pipeline(**{"input": "a", "output": "b", "transform": lambda record: record, **more})


def test_its_settings_are_those_of_the_command_line() -> None:
    options = {"also_output": ["c"], "on_error": "dead-letter", "reader": "connector", "master": "none"}
    settings = pipeline_of(**options, max_records_per_transaction=7).settings
    assert (settings.outputs, settings.dead_letter, settings.group) == (("b", "c"), "b.dlq", "brew-b")
    assert (settings.on_error, settings.reader, settings.spark.absent) == (OnError.DEAD_LETTER, Reader.CONNECTOR, True)
    assert (settings.max_records_per_transaction, settings.follow) == (7, False)


def test_plain_values_become_the_settings_own_types() -> None:
    """Enums are compared by identity: a string would act like the default. A single name is a sequence of one."""
    settings = pipeline_of(on_missing_position="restore", stand_by=True, share=False, patience_s=5).settings
    assert settings.on_missing_position is OnMissingPosition.RESTORE
    assert (settings.stand_by, settings.share, settings.patience_s) == (ClaimsSettings(), None, 5)
    assert pipeline_of(allow=["input-access"]).settings.allow == {"input-access"}
    settings = pipeline_of(also_output="late", py_files=Path(__file__)).settings
    assert (settings.also_output, settings.spark.py_files) == (("late",), (__file__,))


def test_a_file_of_the_working_directory_is_that_of_its_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that changed to another project wrote what the first one's function returned."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "project.py").write_text(f"def name(record):\n    return {name!r}\n")
        monkeypatch.chdir(tmp_path / name)
        made = transformation(pipeline_of(transform="project.py:name").settings)
        assert isinstance(made, FunctionTransformation)
        assert made.function is not None
        assert made.function(None) == name


def test_a_script_that_names_its_own_function_is_refused(tmp_path: Path) -> None:
    """Its file is imported for the function, made a second pipeline, and waited for itself without an end."""
    script = tmp_path / "naming_itself.py"
    script.write_text(
        "import brew\ndef f(record):\n    return record\n"
        f"brew.Pipeline(input='a', output='b', transform='{script}:f')\n"
    )
    with pytest.raises(UsageError, match=r"importing .*naming_itself\.py failed: .* put what a script does under `if "):
        pipeline_of(transform=f"{script}:f")


def test_command_and_library_name_group_and_dead_letter_topic_alike() -> None:
    """The orders' defaults would make another function go on at the orders' committed offsets."""
    library = pipeline_of(output="clicks.enriched").settings
    words = ["--output", "clicks.enriched", "--master", "none"]
    arguments = ["--transform", "clicks_example:add_domain", *words]
    assert named(arguments) == (library.group, library.dead_letter) == ("brew-clicks.enriched", "clicks.enriched.dlq")
    assert named([*arguments, "--group", names.GROUP_ID]) == (names.GROUP_ID, "clicks.enriched.dlq")
    assert named([*arguments, "--dead-letter", "other"]) == ("brew-clicks.enriched", "other")
    assert named(words) == (names.GROUP_ID, names.DEAD_LETTER_TOPIC)


def named(words: list[str]) -> tuple[str, str]:
    groups: list[tuple[str, str]] = []

    @click.command()
    @run_options
    def run(**option: Any) -> None:
        groups.append((option["group"], option["dead_letter"]))
        assert click.get_current_context().params["group"] == option["group"]

    run.main(words, standalone_mode=False)
    return groups[0]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"max_record_per_transaction": 7}, "no setting 'max_record_per_transaction'; did you mean 'max_records_per"),
        ({"follow": True}, "no setting 'follow'"),
        ({"reader": "conector"}, "reader is 'conector'; it is one of connector, direct"),
        ({"transform": "clicks_example:add_domian"}, "did you mean 'add_domain'"),
        ({"output": "a"}, "they have to be three topics"),
        ({"also_output": ["b"]}, "names b, which is another topic of the run, or named twice"),
        ({"also_output": ["c", "c"]}, "names c, which is another topic of the run, or named twice"),
        ({"also_output": ["c d"]}, "--also-output"),
        ({"transform": None}, "no transformation is given"),
        (
            {"on_missing_position": "restor"},
            "on_missing_position is 'restor'; it is one of refuse, restore, start-over",
        ),
        ({"allow": "no-such-check"}, "'no-such-check': no check has that name"),
        ({"lanes": "2"}, "lanes is '2'; it has to be of type int"),
        ({"patience_s": "2"}, "patience_s is '2'; it has to be of type float"),
        ({"max_rejected": "0.5"}, "max_rejected is '0.5'; it has to be of type float or None"),
        ({"input": b"a"}, "input is b'a'; it has to be of type str"),
        ({"group": 7}, "group is 7; it has to be of type str"),
        ({"also_output": [7]}, "also_output is 7; it has to be of type str"),
        ({"also_output": None}, "also_output is None; it has to be of type str or a sequence of them"),
        ({"py_files": "no.py"}, "py_files is 'no.py': there is no such file"),
        ({"py_files": 3}, "py_files is 3; it has to be of type str or a sequence of them"),
        ({"allow": 3}, "allow is 3; it has to be of type str or a sequence of them"),
        ({"transform": 5}, "transform is 5; it has to be of type str or a function"),
        ({"client_config": 5}, "client_config is 5; it has to be of type str, Path or None"),
        ({"conf": [("a", "1")]}, "it has to be of type Mapping or None"),
        ({"share": "yes"}, "share is 'yes'; it has to be of type ClaimsSettings or None"),
    ],
)
def test_what_can_not_be_is_refused_when_it_is_made(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        pipeline_of(**more)


@pytest.mark.parametrize(
    ("several", "runs"), [({}, "alone"), ({"stand_by": True}, "stand-by"), ({"share": True}, "sharing")]
)
def test_a_run_is_one_of_several_drivers_where_its_settings_say_so(
    several: dict[str, bool], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    for module, name, kind in (
        (pipeline, "run", "alone"),
        (coordination, "run", "stand-by"),
        (coordination, "run_sharing", "sharing"),
    ):
        monkeypatch.setattr(module, name, lambda *_, kind=kind: ran.append(kind))
    pipeline_of(master="none", **several).run()
    assert ran == [runs]


def test_an_error_in_the_block_stops_the_run_and_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would write on behind a script that has ended its block."""
    stopped: list[bool] = []
    monkeypatch.setattr(pipeline, "run", lambda _settings, stop, *_: stopped.append(stop.wait(20)))
    run = pipeline_of(master="none").start()

    def script() -> None:
        with run:
            raise ZeroDivisionError

    with pytest.raises(DeadlineExceeded, match=r"still runs after 0\.01 s"):
        run.wait(0.01)
    with pytest.raises(ZeroDivisionError):
        script()
    assert (stopped, run.status.state) == ([True], "stopped")


def test_what_ends_a_run_in_the_background_is_raised_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def refuse(_settings: object, stop: threading.Event, *_: object) -> None:
        began.set()
        assert stop.wait(20)
        raise Refused("input-lost")

    monkeypatch.setattr(pipeline, "run", refuse)
    run = pipeline_of(master="none").start()
    assert began.wait(20)
    assert run.status.state != "failed"
    for wait in (run.stop, run.wait):
        with pytest.raises(Refused, match="input-lost"):
            wait()
    assert run.status.state == "failed"
