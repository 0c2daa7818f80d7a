"""The live view finds a run on this machine by itself, and takes no other program for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ui_views import running, status

from brew.connection import Connection
from brew.deadline import Deadline
from brew.observability.status import Status
from brew.settings import PipelineSettings
from operations.ui.sources import LocalStatusSource

RUN = PipelineSettings(Connection("127.0.0.1:9092"), "in", "out", "dlq", "g")
OURS = replace(status(running(0)), bootstrap="localhost:9092")


@contextmanager
def answering(told: Status) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = told.to_json()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/status"
        finally:
            server.shutdown()
            thread.join()


def test_a_run_on_the_same_group_topic_and_cluster_is_taken() -> None:
    """However the cluster's own machine is written."""
    with answering(OURS) as url:
        found = LocalStatusSource(url, RUN).ask(Deadline(5))
    assert found is not None
    assert [one.partition for one in found.partitions] == [0]


@pytest.mark.parametrize(
    "other",
    [
        replace(OURS, group="another"),
        replace(OURS, bootstrap="elsewhere:9092"),
        replace(OURS, topics=replace(OURS.topics, input="another")),
    ],
)
def test_a_program_that_works_on_something_else_is_not(other: Status) -> None:
    """Nor is it a source that is stale: nobody asked for it."""
    with answering(other) as url:
        assert LocalStatusSource(url, RUN).ask(Deadline(5)) is None


def test_where_nothing_answers_nothing_is_told() -> None:
    """A port that was just closed."""
    with answering(OURS) as url:
        pass
    assert LocalStatusSource(url, RUN).ask(Deadline(2)) is None
