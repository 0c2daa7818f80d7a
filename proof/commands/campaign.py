"""Commands that run the fault campaign, replay one cell, and report the results."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table

from brew.cli import flag, option, options, plain_option, repeatable, typed_option
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused, UsageError
from brew.names import ExitCode
from proof.campaign.campaign import Plan, chosen, named, run_campaign
from proof.campaign.cell import INCONCLUSIVE, PROVEN, VIOLATED, Cell, Result, p95
from proof.campaign.runner import RunSettings
from proof.campaign.stage import WRITER
from proof.commands import file_option, json_option, print_json, show
from proof.provenance import kernel, kernels
from proof.report.page import document, markdown, page
from proof.report.results import Provenance, read
from proof.report.results import Result as CellResult
from proof.report.summary import Summary

_SIGNS = {PROVEN: "✔", VIOLATED: "✘", INCONCLUSIVE: "?"}
_run_options = options(
    typed_option("--kills", click.IntRange(1), 5, "Number of kills in each crash loop."),
    typed_option("--out", click.Path(path_type=Path, file_okay=False), "proof-results", "Directory for the results."),
    plain_option(
        "--bootstrap", "Existing brokers to use instead of a sandbox; no faults are injected into them.", "HOST:PORT"
    ),
    plain_option("--writer", "Command to test  [default: python -m pipeline run]", "COMMAND"),
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SIZE = "1280,1800"
_TOLD, _PICTURE_S = 400, 60.0


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(number) for number in value.split(",")))
    except ValueError as error:
        raise UsageError(f"--seeds is {value!r}; give integers separated by commas, as in 1,2,3") from error


@click.command()
@repeatable(
    "--cells patterns", "Name pattern, row or mark of cells to run, in this order; repeatable  [default: all]", "GLOB"
)
@option(
    "--seeds", default="1", callback=_numbers, help="Random seeds, separated by commas; each cell runs once with each."
)
@plain_option(
    "--minutes", "Duration of a random mixture of faults  [default: the cell's own]", type=click.FloatRange(0.1)
)
@typed_option("--slack", click.FloatRange(1), 1.0, "Factor by which time bounds are extended, for slow machines.")
@typed_option("--at-once", click.IntRange(1, 8), 1, "Number of cells to run in parallel, each in a sandbox of its own.")
@_run_options
@plain_option("--begin-within-s", "Start no cell after this time.", type=click.FloatRange(1))
@flag("--may-leave-out", "Do not fail because --begin-within-s left cells out; they are still listed.")
@flag("--resume", "Skip cells that have a result of the same code (kernel) in --out.")
@flag("--again", "With --resume, run cells again that were inconclusive or only too late; the result says so.")
@flag("--keep", "Keep logs and journals of proven cells, too.")
@flag("--list as_list", "List the cells without running them.")
@flag("--json as_json", "Print one JSON object per result instead of text.")
def campaign(
    *, patterns: tuple[str, ...], seeds: list[int], may_leave_out: bool, as_list: bool, as_json: bool, **given: Any
) -> int:
    """
    Inject faults into writers, brokers, networks and disks, and verify that no record is lost or duplicated.

    Runs the cells of the fault matrix in a sandbox of three brokers, which is removed at the end.
    Exit codes: 0 all as expected, 1 a cell was violated or a control was not, 3 a cell was inconclusive or left out.

    Examples:
      python -m proof campaign --list
      python -m proof campaign --cells 'F01-*' --kills 100
      python -m proof campaign --cells prove --seeds 1,2,3 --out results --resume
    """
    cells = chosen(patterns)
    if as_list:
        _show(cells, as_json=as_json)
        return ExitCode.DONE
    plan = _plan(cells, seeds, **given)
    done = _run_campaign(plan, as_json=as_json)
    if left_out := plan.missing_in(done):
        click.echo(f"left out: {', '.join(left_out)}; run again with --resume to continue", err=True)
    code = _code(done)
    return ExitCode.REFUSED if left_out and not may_leave_out and code == ExitCode.DONE else code


@click.command()
@click.argument("cell")
@click.argument("seed", type=int)
@_run_options
@flag("--json as_json", "Print the result as one JSON object instead of text.")
def replay(cell: str, seed: int, out: Path, *, as_json: bool, **given: Any) -> int:
    """
    Run one cell again with the seed of a result, and keep its logs and journals.

    Example:
      python -m proof replay F01-after-flush-writer-direct 3
    """
    again = named(cell)
    plan = _plan([again], [seed], out=out / "replay", keep=True, **given)
    done = _run_campaign(plan, as_json=as_json)
    click.echo(f"logs and journals: {plan.settings.folder / f'{again.name}-{seed}'}", err=as_json)
    return _code(done)


def _plan(cells: Sequence[Cell], seeds: Sequence[int], *, out: Path, writer: str | None, **given: Any) -> Plan:
    program = WRITER if writer is None else _program(writer)
    run = {name: given.pop(name) for name in ("kills", "keep", "minutes", "slack") if name in given}
    settings = RunSettings(out.resolve(), program=program, **run)
    return Plan(cells, seeds, settings, shlex.join(["proof", *sys.argv[1:]]), **given)


def _program(writer: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(writer))
    except ValueError as error:
        raise UsageError(f"--writer is {writer!r}: {error}; write the command as in a shell") from error
    if not words:
        raise UsageError("--writer is empty; give a command, or leave it out")
    return words


def _run_campaign(plan: Plan, *, as_json: bool) -> list[Result]:
    console = Console(stderr=True)
    with Status("starting the brokers", console=console) as status:
        if not console.is_terminal:
            status.stop()

        running: dict[tuple[str, int], str] = {}

        def starts(cell: Cell, seed: int) -> None:
            running[cell.name, seed] = f"{cell.name} with seed {seed}: {cell.fault}, {cell.target}, {cell.moment}"
            status.update("; ".join(running.values()))

        def ends(result: Result) -> None:
            running.pop((result.cell, result.seed), None)
            click.echo(json.dumps(asdict(result)) if as_json else "\n".join(_lines(result)))

        return run_campaign(plan, starts, ends)


def _lines(result: Result) -> list[str]:
    controlled = result.as_expected and result.expected == VIOLATED
    sign, word = ("✔", "violated, as expected of a control") if controlled else (_SIGNS[result.verdict], result.verdict)
    text = f"{sign} {result.cell} seed {result.seed}: {word}, {result.seconds:.1f} s"
    if result.recovery_s:
        text += f", recovery p95 {p95(result.recovery_s):.2f} s of {len(result.recovery_s)}"
    if result.stall_s:
        text += f", readers held back p95 {p95(result.stall_s):.2f} s"
    if result.fired:
        text += f" ({', '.join(f'{what} {number}' for what, number in result.fired.items())})"
    return [text, *(f"    {line}" for line in result.evidence)]


def _show(cells: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        names = ("name", "row", "fault", "target", "moment", "path", "bound_s", "limit_s", "expected", "not_applicable")
        rows = [{name: getattr(cell, name) for name in names} | {"marks": sorted(cell.marks)} for cell in cells]
        print_json(rows)
        return
    table = Table("cell", "fault", "target", "moment", "bound", "marks", box=None)
    for cell in cells:
        bound = "" if cell.bound_s is None else f"{cell.bound_s:g} s"
        moment = cell.not_applicable or cell.moment
        table.add_row(cell.name, cell.fault, cell.target, moment, bound, " ".join(sorted(cell.marks)))
    show(table, 180)


def _code(done: Sequence[Result]) -> int:
    wrong = {result.verdict for result in done if not result.as_expected}
    if VIOLATED in wrong or PROVEN in wrong:  # a control that is not violated is as bad as a violation
        return ExitCode.VIOLATION
    return ExitCode.REFUSED if wrong else ExitCode.DONE


def picture(page: Path, into: Path, deadline: Deadline) -> None:
    """Write a screenshot of the page's top as PNG; `Refused` without chromium or picture, or `DeadlineExceeded`."""
    if (browser := next(filter(None, map(shutil.which, _BROWSERS)), None)) is None:
        install = "install it (Debian: apt-get install chromium), or omit --picture"
        raise Refused(f"--picture needs chromium, which is not on PATH; {install}")
    into.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="brew-picture-", ignore_cleanup_errors=True) as profile:
        # Chromium has no sandbox as root; the page's own policy blocks all traffic.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        shot = [f"--window-size={_SIZE}", f"--screenshot={into.resolve()}", page.resolve().as_uri()]
        command, limit_s = [browser, *options, *shot], deadline.remaining_s()
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            late = f"{browser} took no picture within {deadline.budget_s:g} s; try again, or omit --picture"
            raise DeadlineExceeded(late) from error
    if done.returncode or not into.exists():
        message = done.stderr.decode(errors="replace").strip()[-_TOLD:]
        wrong = f"{browser} exited with {done.returncode} and wrote no picture"
        raise Refused(f"{wrong}: {message}; correct this, or omit --picture")


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@file_option("--out", "File to write the page to.", "FILE.html", required=True)
@file_option("--summary-md", "File to write the summary to, as Markdown.", "FILE.md")
@file_option("--picture shot", "File to write a screenshot of the page to; needs chromium.", "FILE.png")
@json_option
def report(results: tuple[Path, ...], out: Path, summary_md: Path | None, shot: Path | None, as_json: bool) -> None:
    """
    Write an HTML page of a campaign's results: verdict, fault matrix, times, evidence, and commands to repeat a cell.

    RESULTS are a campaign's files: results.json, or results.jsonl with one result per line. The page is
    self-contained. The exit code is 0 if the page was written, whatever the results are.

    Examples:
      python -m proof report results.jsonl --out report.html
      python -m proof report results.json more.jsonl --out report.html --json
      python -m proof report results.json --out report.html --summary-md summary.md --picture report.png
    """
    summary = _summary(results)
    _write(out, page(summary))
    if summary_md:
        _write(summary_md, markdown(summary))
    if shot:
        picture(out, shot, Deadline(_PICTURE_S))
    if as_json:
        print_json(document(summary))
        return
    click.echo(summary.headline)
    if summary.outdated:
        click.echo(summary.outdated)
    for bar in summary.bars:
        click.echo(f"{bar.met}: {bar.title}: {bar.measured} (wanted: {bar.wanted})")
    for written in filter(None, (out, summary_md, shot)):
        click.echo(f"wrote {written}")


def _summary(paths: tuple[Path, ...]) -> Summary:
    provenance: list[Provenance] = []
    results: list[CellResult] = []
    today = kernels()
    for path in paths:
        # Evidence may contain any bytes; the page shows those that are not UTF-8 as escapes.
        campaigns, read_results = read(path.read_text("utf-8", errors="surrogateescape"), path.name, today)
        provenance += campaigns
        known = {(result.cell, result.seed, result.began) for result in results}  # results.json has those of .jsonl
        results += [result for result in read_results if (result.cell, result.seed, result.began) not in known]
    return Summary.of(provenance, results, kernel())


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise Refused(f"{path} could not be written ({error.strerror}); choose another file") from error
