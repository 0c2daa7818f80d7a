"""The live view's server, without any cluster: what it answers, to whom, and when it ends."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from harness.browser import Page
from harness.live import Stream, get, served
from harness.ui_views import NAMES, T0, moving, view_of

from brew.__main__ import cli
from brew.cli import exit_code_of
from brew.errors import UsageError
from brew.names import ExitCode
from operations.ui import poller
from operations.ui.model import View
from operations.ui.poller import checked_address
from operations.ui.server import LiveView, loopback

TICK_S = 0.05


class TickingView:
    """A view whose clock goes on by a second each time it is taken."""

    def __init__(self, partitions: int = 1) -> None:
        answers, memory = moving(partitions=partitions)
        self._view, self.taken = view_of(answers, memory), 0
        self.hang = threading.Event()
        self.hang.set()

    def __call__(self) -> View:
        self.taken += 1
        self.hang.wait(20)
        return replace(self._view, now_ms=T0 + 1000 * self.taken)


def stream_position(port: int) -> str:
    (body,) = [one for one in Page(get(port)[2]).nodes if one.tag == "body"]
    return body.attributes["data-at"]


def test_page_files_and_document_are_answered_with_the_policy() -> None:
    with served(LiveView(TickingView(), TICK_S)) as port:
        kinds = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript", "/icon.svg": "image/svg+xml"}
        for path, kind in {**kinds, "/view.json": "application/json"}.items():
            code, headers, body = get(port, path)
            assert (code, headers["content-type"].partition(";")[0], bool(body)) == (200, kind, True)
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
            assert "server" not in headers
        assert NAMES.group in get(port)[2]


def test_nothing_but_get_is_answered_and_no_other_sites_page_gets_anything() -> None:
    """A name that leads to this machine is not enough (DNS rebinding)."""
    with served(LiveView(TickingView(), TICK_S)) as port:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for path in ("/", "/events", "/view.json"):
                assert get(port, path, method)[0] == 405
        assert get(port, "/../pyproject.toml")[0] == 404
        assert get(port, "/", Host="evil.example")[0] == 400
        for name in ("127.0.0.1", "localhost", "[::1]"):
            assert get(port, "/", Host=f"{name}:{port}")[0] == 200


def test_readers_share_one_look_and_each_sees_what_changed() -> None:
    view = TickingView()
    with served(LiveView(view, 0.2)) as port:
        position = stream_position(port)
        before, began = view.taken, time.monotonic()
        streams = [Stream(port, position) for _ in range(20)]
        for one in streams:
            with one:
                one.await_part("when", lambda _: True)
        ticks = (time.monotonic() - began) / 0.2
        assert view.taken - before <= ticks + 2
        assert all(one.parts.keys() == {"when"} for one in streams)


def test_a_reader_that_was_away_gets_what_it_missed_and_an_unknown_one_loads_anew() -> None:
    """By the number of the last event it saw, as browsers send it."""
    with served(LiveView(TickingView(), TICK_S)) as port:
        with Stream(port, stream_position(port)) as first:
            first.await_part("when", lambda _: True)
        with Stream(port, first.last) as again:
            again.await_part("when", lambda text: text != first.parts["when"])
        with Stream(port, "0123abcd.7") as other:
            assert [other.event(), other.event()] == [("reload", {}), None]


def test_a_view_that_hangs_leaves_the_page_and_its_beat() -> None:
    view = TickingView()
    with served(LiveView(view, TICK_S)) as port:
        with Stream(port, stream_position(port)) as stream:
            stream.await_part("when", lambda _: True)
            view.hang.clear()
            while (event := stream.event()) is not None and event[0] != "beat":
                pass
            assert event is not None
            assert get(port)[0] == 200
        view.hang.set()


def test_streams_end_with_the_server_at_once() -> None:
    """Readers that stay would hold it up for ever; `served` fails when they do."""
    with served(LiveView(TickingView(), 30)) as port:
        stream = Stream(port, stream_position(port))
        stream.__enter__()
        began = time.monotonic()
    assert time.monotonic() - began < 2
    while stream.event() is not None:
        pass
    stream.__exit__()


def test_what_nobody_foresaw_ends_the_server_instead_of_leaving_old_numbers() -> None:
    """The break: a view that fails at its third turn."""
    view = TickingView()

    def fails() -> View:
        if view.taken > 1:
            raise RuntimeError("unforeseen")
        return view()

    live = LiveView(fails, TICK_S)
    with served(live) as port, Stream(port, stream_position(port)) as stream:
        while stream.event() is not None:
            pass
    assert isinstance(live.failed, RuntimeError)


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.1.2.3", False), ("h", False)],
)
def test_loopback_is_told_from_what_others_reach(host: str, own: bool) -> None:
    assert loopback(host) == own


def test_addresses_are_refused_with_their_setting() -> None:
    assert checked_address("http://h:3000") == "http://h:3000/status"
    assert checked_address("https://h/x/status?y=1") == "https://h/x/status"
    for url in ("h:3000", "ftp://h/", "http://", "http://h:x/", "http://h:99999", "http://[::1:3000"):
        with pytest.raises(UsageError, match="--status-url is"):
            checked_address(url)
    for url in ("http://user:canary-7@h:3000", "http://user:canary-7@[::1:3000"):
        with pytest.raises(UsageError) as refused:
            checked_address(url)
        assert "canary-7" not in str(refused.value)


def test_an_empty_address_is_not_all_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    """`--host "$HOST"` of an unset variable listened on all, and printed `http://:3001/`."""
    assert exit_code_of(cli, "brew", ["ui", "--host", "", "--bootstrap", "localhost:1"]) == ExitCode.USAGE
    assert "--host is empty; name an address, such as 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ui", "top"])
@pytest.mark.parametrize(
    "words", ["--interval 0", "--tail 0", "--patience 999", "--status-url h:3000", "--output brew.orders.v1"]
)
def test_a_wrong_value_is_refused_before_the_brokers_are_asked(
    command: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a broker, `brew top --interval 0` waited for 12 s and named the broker."""
    asked: list[str] = []
    monkeypatch.setattr(poller, "connected", asked.append)
    assert exit_code_of(cli, "brew", [command, *words.split()]) == ExitCode.USAGE
    assert words.split()[1] in capsys.readouterr().err
    assert asked == []
