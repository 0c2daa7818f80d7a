"""The live view of a real run on a real broker: what it shows, that it keeps itself current, that it ends at once."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from harness.browser import WAIT, Page, tab
from harness.live import Stream, get, served
from harness.operate import json_of, pipeline, upstream, write
from harness.pipeline import Running, Stage
from harness.servers import make_topics
from harness.waiting import markers_written, until

from brew.connection import Connection, Secret
from brew.deadline import Deadline
from brew.kafka.cluster_admin import set_config
from brew.kafka.topics import cleanup_policy
from brew.names import ExitCode
from brew.offsets import SourcePosition
from brew.settings import PipelineSettings
from operations.ui.model import transactions
from operations.ui.poller import LiveSettings, PollGroup
from operations.ui.server import LiveView
from operations.ui.sources import OutputTailSource
from proof.wire.proxy import WireProxy

CANARY = "canary-5f1d0c"
INTERVAL_S = 0.2
_POSITION_AT_THE_END = "> / 5<"
"""Of the position beside the end: Kafka has told where the group stands; what else is shown may come before."""


@contextmanager
def ui(stage: Stage, *more: str) -> Iterator[tuple[Running, int]]:
    """`brew ui` as users start it, and its port."""
    arguments = ["ui", *stage.options(), "--port", "0", "--interval", str(INTERVAL_S), *more]
    with stage.python("pipeline", *arguments) as program:
        line = program.await_line(lambda line: line.startswith("live view at http://127.0.0.1:"))
        yield program, int(line.rstrip("/\n").rpartition(":")[2])


@contextmanager
def live_view(run: PipelineSettings, patience_s: float = 5.0) -> Iterator[int]:
    """The same inside this process."""
    settings = LiveSettings(run, interval_s=INTERVAL_S, patience_s=patience_s)
    with PollGroup(settings) as poll_group, served(LiveView(poll_group.view, INTERVAL_S)) as port:
        yield port


def create_and_drain(stage: Stage, partitions: int = 1) -> PipelineSettings:
    stage.create(partitions)
    stage.seed(5 * partitions)
    stage.drain_locally()
    markers_written(stage.connection, stage.names.output)
    return stage.settings("--master", "none")


def load_until(port: int, *texts: str, seconds: float = 20.0) -> Page:
    """The page once it says all that; each look is a reload, as without its script."""
    deadline = Deadline(seconds)
    while missing := [part for part in texts if part not in (text := get(port)[2])]:
        assert not deadline.expired(), f"{missing} do not come: {text}"
    return Page(get(port)[2])


def time_of(page: Page) -> str:
    (body,) = [node for node in page.nodes if node.tag == "body"]
    return body.attributes["data-at"]


def test_page_and_stream_show_a_real_run_and_who_blocks_it(stage: Stage, tmp_path: Path) -> None:
    """Positions, transactions, proof and preflight at the first paint; then what comes, without a reload."""
    create_and_drain(stage, 2)
    proof = tmp_path / "proof.json"
    proof.write_text(json.dumps(stage.verify()[1]))
    with ui(stage, "--proof", str(proof)) as (program, port), upstream(stage, "late") as late:
        started_s, name = program.seconds, f"{stage.names.group}:{stage.names.input}"
        page = load_until(port, "✓ proven", f">{name}:0<", f">{name}:1<", " passed<", _POSITION_AT_THE_END)
        for partition, log in stage.logs(stage.names.input).items():
            assert page.texts[f"r{partition}-position"] == f"{log.end:,} / {log.end:,}"
            assert "5 committed" in page.texts[f"r{partition}-tail"]
        assert page.texts["transactions"].count("✓ committed") == 2
        assert "10 inputs = 10 outputs + 0 dead letters" in page.texts["proof"]

        with Stream(port, time_of(page)) as stream:
            write(stage, late, 3)
            stream.await_part("unhealthy", lambda text: stage.names.topic("late") in text)
            assert "▲ partition 0 blocked" in stream.parts["unhealthy"]
            late.commit_transaction(20)
            stage.drain_locally()
            end = stage.logs(stage.names.input)[0].last_stable
            stream.await_part("r0-position", lambda text: f"{end:,}<" in text)
            stream.await_part("unhealthy", lambda text: "partition 0" not in text)

            began = time.monotonic()
            program.terminate()
            while stream.event() is not None:
                pass
            ran = program.wait(30)
        at_once = time.monotonic() - began < max(10, started_s)  # the machine's own yardstick
        assert (ran.code, at_once) == (128 + signal.SIGTERM, True), ran.text
    stage.no_process_left()


def test_the_script_puts_new_numbers_in_place_in_a_real_browser(stage: Stage) -> None:
    """No reload: a mark on the window stays. Then the server goes, and the page says so."""
    run = create_and_drain(stage)
    with contextlib.ExitStack() as server:
        port = server.enter_context(live_view(run))
        load_until(port, 'id="r0-position"')
        with tab(f"http://127.0.0.1:{port}/") as browser:
            browser.evaluate(WAIT % "document.getElementById('r0-position')?.textContent === '5 / 5'")
            browser.evaluate("window.mark = 7; 0")
            stage.seed(4)
            stage.drain_locally()
            browser.evaluate(WAIT % "document.getElementById('r0-position').textContent === '9 / 9'")
            assert browser.evaluate("window.mark") == 7
            browser.evaluate("document.querySelector('button[data-only=unhealthy]').click(); 0")
            assert browser.evaluate("getComputedStyle(document.getElementById('p0')).display") == "none"
            server.close()
            browser.evaluate(WAIT % "document.body.dataset.link === 'lost'")
            assert browser.evaluate("getComputedStyle(document.getElementById('lost')).display") == "block"


def test_no_secret_is_shown(stage: Stage) -> None:
    """A planted password is in no page, no stream, no document, whatever the clients make of it."""
    run = create_and_drain(stage)
    names = ("sasl.password", "ssl.key.password")
    secrets = {name: Secret(CANARY) for name in names}
    connection = Connection(run.connection.bootstrap, {"sasl.username": "somebody"}, secrets)
    with live_view(replace(run, connection=connection)) as port:
        page = load_until(port, " passed<", "5 committed", _POSITION_AT_THE_END)
        with Stream(port, time_of(page)) as stream:
            stream.await_part("when", lambda _: True)
        texts = [get(port, path)[2] for path in ("/", "/view.json", "/page.js", "/page.css")] + [stream.text]
    assert page.texts["r0-position"] == "5 / 5"
    assert all(CANARY not in text for text in texts)


def test_brokers_that_are_gone_are_marked_stale(stage: Stage) -> None:
    """The last numbers stay, with their age and the reason; the page itself goes on."""
    run = create_and_drain(stage)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(WireProxy(stage.broker.bootstrap))
        with live_view(replace(run, connection=Connection(proxy.bootstrap)), patience_s=0.5) as port:
            page = load_until(port, _POSITION_AT_THE_END, "5 committed", " passed<")
            with Stream(port, time_of(page)) as stream:
                stack.close()
                stream.await_part("mark-flow", lambda text: "stale" in text)
            assert Page(get(port)[2]).texts["r0-position"] == "5 / 5"


def test_the_terminal_tells_the_same_once(stage: Stage) -> None:
    """As JSON, with rates and states that took more than one look."""
    create_and_drain(stage)
    set_config(stage.admin, stage.names.output, {"cleanup.policy": "compact"}, Deadline(20))
    output = (stage.admin, stage.names.output)
    until(lambda: cleanup_policy(*output, Deadline(20)) == "compact", "the broker has heard of it")
    report = json_of(stage, "top", "--once", "--interval", "0.2")
    (row,) = report["partitions"]
    assert (row["state"], row["position"], row["to_read"], row["rate"]) == ("idle", 5, 0, 0.0)
    assert (row["last_transaction"]["outcome"], row["last_transaction"]["records"]) == ("committed", 5)
    assert [check["name"] for check in report["preflight"] if check["severity"] == "unsafe"] == ["output-cleanup"]
    assert (report["sources"]["status"]["asked"], report["sources"]["flow"]["stale"]) == (False, None)


@pytest.mark.parametrize("records", [750, 1460])
def test_a_transaction_larger_than_the_tail_is_counted_whole(stage: Stage, records: int) -> None:
    """The tail holds 400 offsets; what lies before them is read back."""
    make_topics(stage.connection, stage.names.input, stage.names.output)
    with upstream(stage, "large") as writer:
        writer.begin_transaction()
        for number in range(records):
            writer.produce(
                stage.names.output, b"%d" % number, None, 0, headers=SourcePosition("in", 0, number).headers()
            )
            if number % 50 == 0:
                assert writer.flush(20) == 0
        writer.commit_transaction(20)
    markers_written(stage.connection, stage.names.output)
    tails = OutputTailSource(stage.connection, stage.names.output, 400)
    (transaction,) = transactions(tails.ask(Deadline(20)).all_strips, stage.names.group, "in")
    assert (transaction.records, transaction.exact, transaction.outcome) == (records, True, "committed")
    assert (transaction.first, transaction.last) == (0, records - 1)


def test_the_terminal_goes_on_until_sigterm(stage: Stage) -> None:
    """A line per interval, and the end at once."""
    stage.create(1)
    with stage.python("pipeline", "top", *stage.options(), "--json", "--interval", "0.2") as program:
        program.await_line(lambda line: line.startswith("{"))
        started_s = program.seconds
        program.await_line(lambda line: '"state":"idle"' in line, times=2)
        began = time.monotonic()
        program.terminate()
        assert (program.wait(30).code, time.monotonic() - began < max(10, started_s)) == (128 + signal.SIGTERM, True)


def test_a_host_that_others_reach_is_warned_of_and_a_taken_port_refused(stage: Stage) -> None:
    """Before anything is served."""
    with socket.create_server(("0.0.0.0", 0)) as holder:
        code, output = pipeline(stage, "ui", "--host", "0.0.0.0", "--port", str(holder.getsockname()[1]))
    assert (code, "set another --port, or 0" in output) == (ExitCode.REFUSED, True), output
    assert "everyone who reaches this machine can read topics" in output
