"""The live view's server and its event stream, from a test's perspective."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from brew.deadline import Deadline
from operations.ui.server import OWN_NAMES, LiveView, server

_ANSWER_S = 10.0


def get(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers by lower-case name, and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return response.status, received, response.read().decode()
    finally:
        connection.close()


@dataclass
class Stream:
    """An open event stream; `text` is everything received."""

    port: int
    since: str
    text: str = ""
    last: str = ""
    parts: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        self._connection.request("GET", f"/events?since={self.since}")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def event(self) -> tuple[str, Any] | None:
        """Return the next event and its data, or None if the server ended the stream."""
        name, data = "", ""
        while line := self._answer.readline().decode():
            self.text += line
            key, _, value = line.rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                data = value
            elif key == "id":
                self.last = value
            elif not key:
                return name, json.loads(data)
        return None

    def await_part(self, name: str, wanted: Callable[[str], bool], seconds: float = 20.0) -> str:
        """Wait until the part with that id is as wanted; an AssertionError shows its last state."""
        deadline = Deadline(seconds)
        if name in self.parts and wanted(self.parts[name]):
            return self.parts[name]
        while not deadline.expired():
            event = self.event()
            assert event is not None, "the server ended the stream"
            if event[0] == "change":
                self.parts |= event[1]
                if name in event[1] and wanted(event[1][name]):
                    return str(event[1][name])
        raise AssertionError(f"{name} is not as wanted after {seconds:g} s: {self.parts.get(name)}")


@contextmanager
def served(live: LiveView) -> Iterator[int]:
    """Serve this view inside this process for the duration of the block; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = server(live, OWN_NAMES)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            running.should_exit = True
            thread.join(_ANSWER_S)
            assert not thread.is_alive()
