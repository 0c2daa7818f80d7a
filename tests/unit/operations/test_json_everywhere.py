"""`--json` of the commands that work, not only of those that look: refusals are documents there, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import click
import pytest

from brew.cli import exit_code_of
from brew.driver.run_context import JsonLines, ProgressView, RunProgress
from brew.errors import BrewError, DeadlineExceeded, Refused, Retriable
from brew.names import ExitCode
from brew.range_transaction import Rows
from brew.settings import PipelineSettings
from brew.transformation import transformation
from downstream.__main__ import downstream
from pipeline.__main__ import cli
from proof.__main__ import proof
from sandbox.__main__ import cli as sandbox

PRINTS = """
import logging, sys

print("imported")
log = logging.getLogger("prints")
log.addHandler(logging.StreamHandler(sys.stdout))


def function(record):
    print("called")
    log.error("logged")
    return record
"""
REMEDY = "name another, or create it (`brew topics`; `make topics`)"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "--crash-prob", "2"], "CRASH_PROB"),
        (["submit", "--master", "none"], "nothing to submit"),
        (["ui", "--port", "65536"], "--port"),
    ],
)
def test_a_refusal_is_a_document_on_stderr(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was found, and what to do next."""
    assert exit_code_of(cli, "pipeline", [*words, "--json"]) == ExitCode.USAGE
    output = capsys.readouterr()
    document = json.loads(output.err)
    assert (text in document["error"], bool(document["next"]), output.out) == (True, True, "")


def test_the_line_of_a_submit_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Word for word, so that nobody has to take a shell's quotes apart."""
    called = ["submit", "--dry-run", "--json", "--master", "yarn", "--group", "two words"]
    assert exit_code_of(cli, "pipeline", called) == 0
    line = json.loads(capsys.readouterr().out)["command"]
    assert (line[0], line[line.index("--group") + 1]) == ("spark-submit", "two words")


def test_the_sum_of_a_run_is_a_line_like_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().done(RunProgress())
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["enriched"], event["transactions"], event["rate"]) == ("done", 0, 0, 0)


def test_what_a_function_prints_is_not_among_the_documents_of_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On import and on each record, by print or a logger of its own: all of it goes to stderr."""
    (tmp_path / "prints.py").write_text(PRINTS)
    monkeypatch.syspath_prepend(tmp_path)

    def work(settings: PipelineSettings, _stop: object, _progress: object, view: ProgressView) -> ExitCode:
        prepared = transformation(settings).ready(settings.connection, settings.group, 1)
        assert prepared.transform is not None
        prepared.transform("in", 0, Rows([0], [b"k"], [b"v"], [None], [7]))
        view.note("worked")
        return ExitCode.DONE

    monkeypatch.setattr("pipeline.__main__.work", work)
    words = ["run", "--json", "--master", "none", "--transform", "prints:function", "--output", "o", "--input", "i"]
    assert exit_code_of(cli, "pipeline", words) == ExitCode.DONE
    output = capsys.readouterr()
    assert [json.loads(line)["event"] for line in output.out.splitlines()] == ["note", "done"]
    assert output.err.splitlines() == ["imported", "called", "logged"]


_OF_PROOF = ("group-describe", "verify")
_OF_DOWNSTREAM = ("ledger", "receive", "totals", "call --url http://localhost", "claims status")


@pytest.mark.parametrize("line", ["lag", "explain k", "xray", "doctor", "top --once", *_OF_PROOF, *_OF_DOWNSTREAM])
def test_an_empty_group_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an unset variable, as in `--group "$GROUP"`: confluent-kafka aborts the process, and doctor finds nothing."""
    program = proof if line in _OF_PROOF else downstream if line in _OF_DOWNSTREAM else cli
    called = [*line.split(), "--group", "", "--json", "--bootstrap", "127.0.0.1:1"]
    assert exit_code_of(program, "brew", called) == ExitCode.USAGE
    assert "--group is empty" in json.loads(capsys.readouterr().err)["error"]


@pytest.mark.parametrize("name", ["a\udcff", "a b", ""])
@pytest.mark.parametrize("line", ["explain k --also-output", "doctor --topic", "xray --topic", "verify --also-output"])
def test_a_topic_that_can_not_be_is_refused(line: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one that is not UTF-8, confluent-kafka ended `explain` and `verify` with SIGSEGV (139)."""
    program = proof if line.startswith("verify") else cli
    called = [*line.split(), name, "--json", "--bootstrap", "127.0.0.1:1"]
    assert exit_code_of(program, "brew", called) == ExitCode.USAGE
    assert f"{line.rsplit(maxsplit=1)[-1]} is {name!r}" in json.loads(capsys.readouterr().err)["error"]


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("dlq list", "operations.dlq.command.open_dead_letter_topics"),
        ("dlq inspect 0/1", "operations.dlq.command.open_dead_letter_topics"),
        ("dlq replay", "operations.dlq.command.open_dead_letter_topics"),
        ("xray", "operations.options.reach"),
        ("lag", "operations.options.reach"),
    ],
)
@pytest.mark.parametrize("failure", [Retriable, DeadlineExceeded])
def test_what_the_brokers_fail_at_ends_with_what_to_do(
    line: str,
    called: str,
    failure: type[BrewError],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`dlq` and `xray` printed the client library's error alone."""

    def fail(*_: object) -> NoReturn:
        raise failure("describe topic in: no")

    monkeypatch.setattr(called, fail)
    assert exit_code_of(cli, "brew", [*line.split(), "--json"]) == ExitCode.REFUSED
    document = json.loads(capsys.readouterr().err)
    assert document["error"].startswith("describe topic in: no; check that the brokers are running")
    assert document["next"].endswith("then try again")


@pytest.mark.parametrize("line", ["up", "stores up"])
def test_a_folder_that_can_not_be_made_is_refused_in_one_sentence(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with a stack trace, and with the exit code of a violation."""
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "below"
    assert exit_code_of(sandbox, "sandbox", [*line.split(), "--dir", str(place)]) == ExitCode.REFUSED
    following = "name a path that exists, and that this user may read and write"
    assert capsys.readouterr().err == f"sandbox: {place}: Not a directory; {following}\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        *(
            (f"call --url http://localhost {option} {value}", f"Invalid value for '{option}'")
            for option, value in (
                *(("--batch", 1000001), ("--max-poll-interval-s", 86401)),
                *(("--session-timeout-s", 3601), ("--timeout-s", 3601)),
            )
        ),
        ("receive", "--database (DATABASE_URL) is missing"),
        ("receive --store redis", "--redis (REDIS_URL) is missing"),
        ("receive --store outbox --database postgresql://h/d", "--effect-url is missing"),
        ("receive --keep-days nan", "nan is not a finite number"),
        ("receive --keep-days -1", "-1.0 is not in the range 0<=x<=36500"),
        ("receive --keep-days 1e300", "1e+300 is not in the range 0<=x<=36500"),
        ("receive --claim-s 0", "0.0 is not in the range 0.001<=x<=604800"),
        ("receive --claim-s 1e18", "1e+18 is not in the range 0.001<=x<=604800"),
    ],
)
def test_an_option_is_refused_before_a_broker_or_a_client_library_sees_it(
    line: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries' own errors ended the program with a stack trace, or made a dead letter of every record."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    called = [*line.split(), "--json", "--bootstrap", "127.0.0.1:1"]
    assert exit_code_of(downstream, "downstream", called) == ExitCode.USAGE
    assert text in json.loads(capsys.readouterr().err)["error"]


@pytest.mark.parametrize(
    ("error", "following"),
    [
        (f"no topic; {REMEDY}", REMEDY),
        ("no topic (a; b); create it", "create it"),
        ("a; b; c", "c"),
        ("no remedy", "no remedy"),
    ],
)
def test_what_to_do_next_is_whole(error: str, following: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A semicolon in parentheses does not begin it."""

    @click.command()
    @click.option("--json", is_flag=True)
    def fails(**_: object) -> None:
        raise Refused(error)

    assert exit_code_of(fails, "pipeline", ["--json"]) == ExitCode.REFUSED
    assert json.loads(capsys.readouterr().err) == {"error": error, "next": following}
