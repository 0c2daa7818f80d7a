"""Polls each source of the live view in its own thread, at its own interval, and builds the view from the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast
from urllib.parse import urlsplit

from brew.cli import connection
from brew.deadline import Deadline
from brew.errors import BrewError, UsageError
from brew.observability.local import verdict_file
from brew.observability.settings import PORT
from brew.observability.status import Status
from brew.settings import PipelineSettings
from operations import preflight
from operations.options import connected
from operations.ui.build import PollResults, ViewHistory, build_view
from operations.ui.model import Names, PollResult, View
from operations.ui.sources import InputSource, LocalStatusSource, OutputTailsSource, ProofSource, StatusSource

OWN_STATUS = f"http://127.0.0.1:{PORT}/status"
"""Default address of a run on this machine."""
_NAMES = ("topic", "output", "dead_letter", "group", "also_output")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What to poll, and how often; ``tail``: offsets drawn per output partition; ``patience_s``: timeout of a poll."""

    run: PipelineSettings
    statuses: tuple[str, ...] = ()
    proof: Path | None = None
    interval_s: float = 1.0
    patience_s: float = 5.0
    tail: int = 400

    @classmethod
    def of(cls, option: dict[str, Any]) -> LiveSettings:
        """Return the settings of `live_options`, once a broker has answered; `UsageError` if one is invalid."""
        topic, output, dead_letter, group, also = (option[name] for name in _NAMES)
        run = PipelineSettings(connection(option["bootstrap"]), topic, output, dead_letter, group, also_output=also)
        statuses = tuple(map(checked_address, option["statuses"]))
        connected(option["bootstrap"])
        return cls(run, statuses, option["proof"], option["interval"], option["patience"], option["tail"])


def checked_address(url: str) -> str:
    """Return a status document's address, by default at `/status`; `UsageError` if it is invalid or has a password."""
    try:
        parts = urlsplit(url)
        has_login = "@" in parts.netloc
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known, has_login = False, "@" in url
    if has_login:
        raise UsageError(
            "--status-url has a user or a password, which others can see on the command line; leave them out, because "
            "`/status` needs none"
        )
    if not known:
        raise UsageError(f"--status-url is {url!r}; write http://host:port, such as http://127.0.0.1:3000")
    path = parts.path if parts.path not in {"", "/"} else "/status"
    return f"{parts.scheme}://{parts.netloc}{path}"


class Poller(Generic[_T]):
    """Calls ``ask`` repeatedly, at most half of the time; one that hangs blocks no other source, and becomes stale."""

    def __init__(
        self,
        name: str,
        ask: Callable[[Deadline], _T],
        every_s: float,
        patience_s: float,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask, self._close = ask, close
        self.answer: PollResult[_T] = PollResult(name, every_s, patience_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ask-{name}", daemon=True)

    def start(self) -> None:
        self.answer = replace(self.answer, since_s=time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def leave(self, deadline: Deadline) -> None:
        """Wait for the last answer; a call that hangs is abandoned with its thread."""
        if self._thread.is_alive():
            self._thread.join(deadline.remaining_s())

    def _run(self) -> None:
        while not self._stop.is_set():
            self._once()
            self._stop.wait(max(self.answer.every_s, self.answer.took_s))
        self._close()

    def _once(self) -> None:
        began = time.monotonic()
        try:
            value = self._ask(Deadline(self.answer.patience_s))
            answer = replace(self.answer, value=value, at_s=time.monotonic(), failed=None)
        except BrewError as error:
            answer = replace(self.answer, failed=str(error))
        except Exception as error:  # noqa: BLE001 - an unexpected error must show as a stale source
            answer = replace(self.answer, failed=f"a poll failed with {type(error).__name__}")
        self.answer = replace(answer, took_s=time.monotonic() - began)


_TAIL_EVERY, _PROOF_EVERY_S, _PREFLIGHT_EVERY_S, _PREFLIGHT_PATIENCE_S = 2, 2.0, 60.0, 40.0
_LEAVE_S = 0.5


class PollGroup:
    """One poller per source, ended with the context; call `view`, which keeps a history, from one thread at a time."""

    def __init__(self, settings: LiveSettings) -> None:
        run, every_s, patience_s = settings.run, settings.interval_s, settings.patience_s
        self._names = Names(run.group, run.input, run.output, run.connection.bootstrap, run.also_output)
        self._tail_offsets = settings.tail
        flows = InputSource(run, ages=not settings.statuses)
        tails = OutputTailsSource(run, settings.tail)
        self._flow = Poller("flow", flows.ask, every_s, patience_s, flows.close)
        self._tail = Poller("tail", tails.ask, _TAIL_EVERY * every_s, patience_s)
        self._statuses = [Poller(url, StatusSource(url).ask, every_s, patience_s) for url in settings.statuses]
        self._local = LocalStatusSource(OWN_STATUS, run)
        self._own = None if settings.statuses else Poller(OWN_STATUS, self._local.ask, every_s, patience_s)
        last = verdict_file(run.connection.bootstrap, run.group, (run.input, run.output, run.dead_letter))
        proofs = ProofSource(settings.proof or last, optional=settings.proof is None)
        self._proof = Poller("proof", proofs.ask, _PROOF_EVERY_S, patience_s)
        self._preflight = Poller(
            "preflight", lambda _deadline: preflight.all_findings(run), _PREFLIGHT_EVERY_S, _PREFLIGHT_PATIENCE_S
        )
        self._memory = ViewHistory()
        self._pollers: list[Poller[Any]] = [self._flow, self._tail, self._preflight, *self._statuses, self._proof]
        self._pollers += [self._own] if self._own else []

    def view(self) -> View:
        statuses = tuple(status.answer for status in self._statuses)
        own = None if self._own is None else self._own.answer
        if own is not None and own.value is not None:  # a program on this machine answers
            statuses = (replace(cast("PollResult[Status]", own), name=self._local.url),)
        answers = PollResults(
            self._flow.answer, self._tail.answer, statuses, self._proof.answer, self._preflight.answer
        )
        now_ms = int(time.time() * 1000)
        return build_view(self._names, answers, self._memory, time.monotonic(), now_ms, self._tail_offsets)

    def __enter__(self) -> Self:
        for poller in self._pollers:
            poller.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for poller in self._pollers:
            poller.stop()
        deadline = Deadline(_LEAVE_S)
        for poller in self._pollers:
            poller.leave(deadline)
