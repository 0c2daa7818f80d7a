"""The simulator's check, its files, page, picture and commands; no server needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_up import BENCHMARKS, FREE, NOTHING, NUMBERS, STEP  # first: it says where the benchmarks are
from scale.__main__ import cli
from scale.asking import scenarios
from scale.compare import Compared, Measured, compare, keep, kept, verdict
from scale.numbers import STEPS, Numbers, load, save
from scale.page import commands, refreshed
from scale.picture import PARTITIONS, Curve, Panel, draw
from scale.scenario import Scenario
from scale.simulate import simulate

from protocol.errors import Refused, UsageError

RUN = Measured(64, 64 * 7_500, 160, 2, 0.5, (1.0,), (NUMBERS.speed,), 5.0, 100.0, 0.1)


def machine_with(numbers: Numbers) -> Measured:
    """What a machine with these numbers would measure."""
    return replace(RUN, records_per_s=(simulate(RUN.scenario(), numbers).records_per_s,))


@pytest.mark.parametrize(
    ("broken", "commit_ms", "red"),
    [("", 2.0, 0), ("", 60.0, 0), ("commit", 60.0, 1), ("turns", 60.0, 1), ("python", 2.0, 1), ("tail", 2.0, 1)],
)
def test_a_simulator_that_forgets_a_part_fails_its_check(broken: str, commit_ms: float, red: int) -> None:
    """Sixty-four partitions in one process; what waits is missed where waiting rules, what works where work does."""
    steps = {**dict.fromkeys(STEPS, STEP), "commit": replace(STEP, wall_ms=commit_ms)}
    numbers = replace(NUMBERS, steps=steps, tail_open=replace(STEP, python_ms=10.0))
    real, scenario = machine_with(numbers), RUN.scenario()
    if broken == "turns":
        scenario = replace(scenario, turns=0)
    elif broken == "python":
        numbers = replace(numbers, produce=FREE)
    elif broken == "tail":
        numbers = replace(numbers, tail_open=NOTHING)
    elif broken:
        numbers = numbers.without(broken)
    table, code = verdict([Compared(real, numbers.speed, simulate(scenario, numbers).records_per_s)], 0.15)
    assert code == red
    assert table.row_count == 1


def test_the_check_takes_the_median_and_both_directions() -> None:
    """15 % more is near enough, 16 % less is not."""
    runs = replace(RUN, records_per_s=(100.0, 90.0, 500.0), speeds=(RUN.speeds[0],) * 3)
    more = Compared(runs, RUN.speeds[0], 114.0)
    less = replace(more, simulated_per_s=84.0)
    assert (verdict([more], 0.15)[1], verdict([less], 0.15)[1], verdict([more, less], 0.15)[1]) == (0, 1, 1)
    with pytest.raises(Refused, match="nothing was compared"):
        verdict([], 0.15)


def test_turns_that_are_handed_on_slowly_make_it_slower() -> None:
    """Not where a partition is alone."""
    slow, alone = replace(NUMBERS, change_us=5_000.0), replace(RUN, partitions=1).scenario()
    assert simulate(RUN.scenario(), slow).records_per_s < 0.9 * simulate(RUN.scenario(), NUMBERS).records_per_s
    assert simulate(alone, slow).records_per_s == simulate(alone, NUMBERS).records_per_s


def test_measured_runs_are_kept_and_compared_again(tmp_path: Path) -> None:
    """With the numbers that there are then."""
    keep([machine_with(NUMBERS)], tmp_path / "check.json")
    assert [one.off for one in compare(kept(tmp_path / "check.json"), NUMBERS)] == [0.0]
    with pytest.raises(Refused, match="make bench-scale"):
        kept(tmp_path / "none.json")


def test_numbers_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    """And a file of something else is refused with what to do."""
    file = tmp_path / "numbers.json"
    save(NUMBERS, file)
    assert load(file) == NUMBERS
    file.write_text("[]")
    with pytest.raises(Refused, match="make bench-scale"):
        load(file)
    with pytest.raises(Refused, match="make bench-scale"):
        load(tmp_path / "none.json")


def test_impossible_scenarios_are_refused_by_option_and_limit() -> None:
    """The option's name is in the text."""
    with pytest.raises(UsageError, match=r"--partitions is 0: it has to be between 1 and"):
        Scenario(partitions=0)
    with pytest.raises(UsageError, match=r"--lose is 4"):
        Scenario(executors=4, lose=4)
    with pytest.raises(UsageError, match=r"--lose-at is 60"):
        Scenario(lose=1, lose_at=60.0)
    with pytest.raises(UsageError, match=r"two options at most"):
        scenarios({"reader": "direct", "partitions": [1, 2], "brokers": [1, 2], "executors": [1, 2]})


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    """A column for each of several values; the same numbers as JSON."""
    file = tmp_path / "numbers.json"
    save(NUMBERS, file)
    options = ["simulate", "--numbers", str(file), "--partitions", "2,4", "--executors", "1", "--seconds", "1"]
    shown = CliRunner().invoke(cli, options)
    assert shown.exit_code == 0, shown.output
    assert "4 partitions" in shown.output
    assert '"records_per_s"' in CliRunner().invoke(cli, [*options, "--json"]).output


def test_the_pages_blocks_are_filled_and_nothing_else_changes() -> None:
    """Blocks of commands that are not ours stay as they are."""
    page = "Text\n```console\n$ python -m benchmarks.scale numbers\nold\n```\n```console\n$ ls\nkept\n```\n"
    assert commands(page) == ["numbers"]
    assert refreshed(page, {"numbers": "new  \n"}) == page.replace("old", "new")


def test_every_command_of_the_page_can_be_run() -> None:
    """Its options are known and within limits; nothing is simulated here."""
    told = [words.split() for words in commands((BENCHMARKS.parent / "docs/SCALE.md").read_text())]
    read = [cli.commands[name].make_context(name, options) for name, *options in told]
    assert [context.info_name for context in read] == [name for name, *_ in told] != []


def test_the_picture_shows_every_curve() -> None:
    """And the label of the last point of each."""
    curve = [(p, 1_000.0 * p) for p in PARTITIONS]
    drawn = draw([Panel("Rate", "note", [Curve("four", curve), Curve("five", curve)])])
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 2 * len(PARTITIONS)
    assert ">four<" in drawn
    assert ">five<" in drawn


@pytest.mark.parametrize(("rate_per_s", "code"), [(0.0, 0), (1.0, 1)])
def test_one_command_measures_fills_the_page_and_compares(
    rate_per_s: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, runs, page and picture are written, whatever the comparison says."""
    run = replace(machine_with(NUMBERS), records_per_s=(rate_per_s,)) if rate_per_s else machine_with(NUMBERS)

    def measured(_console: object, *, quick: bool, also: Callable[[object, Numbers], None]) -> Numbers:
        assert not quick
        also(None, NUMBERS)
        return NUMBERS

    for name in ("numbers.json", "check.json", "SCALE.md"):
        (tmp_path / name).write_text("no block of ours\n")
    monkeypatch.setattr("scale.probe.measure.measure", measured)
    monkeypatch.setattr("scale.probe.check.drains", lambda *_: [run])
    monkeypatch.setattr("scale.__main__.sweep", lambda _: [])
    monkeypatch.setattr("scale.__main__.FILE", tmp_path / "numbers.json")
    monkeypatch.setattr("scale.__main__.RUNS", tmp_path / "check.json")
    monkeypatch.setattr("scale.__main__._PAGE", tmp_path / "SCALE.md")

    ended = CliRunner().invoke(cli, ["bench", "--partitions", "4,64"], standalone_mode=False)

    assert ended.exception is None, ended.output
    assert ended.return_value == code
    assert load(tmp_path / "numbers.json") == NUMBERS
    assert kept(tmp_path / "check.json") == [run]
    assert "<svg" in (tmp_path / "scale.svg").read_text()
