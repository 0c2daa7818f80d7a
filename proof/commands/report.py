"""The page of a campaign's results, and its picture."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from proof.commands.options import json_option, say_json
from proof.provenance import kernel
from proof.report.page import page
from proof.report.results import Provenance, Result, read
from proof.report.summary import Summary
from proof.report.text import document, markdown

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SIZE = "1280,1800"
_TOLD = 400


def picture(page: Path, into: Path, deadline: Deadline) -> None:
    """
    Write the top of ``page``, as a wide window shows it, to ``into`` as PNG.

    Raises:
        Refused: there is no chromium, or it wrote no picture; the text says what to do.
        DeadlineExceeded: it did not end in time.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise Refused(
            "a picture needs chromium and none was found on PATH; install it (Debian: apt-get install chromium) "
            "or leave --picture out"
        )
    into.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="brew-picture-", ignore_cleanup_errors=True) as profile:
        # Root has no sandbox to give; the page's own policy lets nothing in or out.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        shot = [f"--window-size={_SIZE}", f"--screenshot={into.resolve()}", page.resolve().as_uri()]
        try:
            done = subprocess.run(
                [browser, *options, *shot], capture_output=True, check=False, timeout=deadline.remaining_s()
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(f"picture: {browser} did not end within {deadline.budget_s:g} s") from error
    if done.returncode or not into.exists():
        message = done.stderr.decode(errors="replace").strip()[-_TOLD:]
        raise Refused(
            f"{browser} ended with {done.returncode} and wrote no picture; leave --picture out, or see: {message}"
        )


_PICTURE_S = 60.0
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=_FILE, metavar="FILE.html", help="Where the page goes.")
@click.option("--summary-md", type=_FILE, metavar="FILE.md", help="Write the summary as Markdown, too.")
@click.option("--picture", "shot", type=_FILE, metavar="FILE.png", help="Take the page's picture, too; needs chromium.")
@json_option
def report(results: tuple[Path, ...], out: Path, summary_md: Path | None, shot: Path | None, as_json: bool) -> None:
    """
    Make one page of a campaign's results: verdict, fault matrix, times, evidence, commands to run a cell again.

    RESULTS are files of a campaign: results.json, or results.jsonl with a result per line. The page needs nothing but
    itself. The exit code says whether it was written, not what it says.

    \b
    Examples:
      python -m proof report results.jsonl --out report.html
      python -m proof report results.json more.jsonl --out report.html --json
      python -m proof report results.json --out report.html --summary-md summary.md --picture report.png
    """  # noqa: D301 - click's own mark
    summary = _summary(results)
    _write(out, page(summary))
    if summary_md:
        _write(summary_md, markdown(summary))
    if shot:
        picture(out, shot, Deadline(_PICTURE_S))
    if as_json:
        say_json(document(summary))
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
    results: list[Result] = []
    today = kernel()
    for path in paths:
        # Evidence may hold any bytes; what is no UTF-8 is shown as such on the page.
        campaigns, read_results = read(path.read_text("utf-8", errors="surrogateescape"), path.name, today)
        provenance += campaigns
        results += read_results
    return Summary.of(provenance, results, today)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise Refused(f"{path} could not be written ({error.strerror}); name a place that can be") from error
