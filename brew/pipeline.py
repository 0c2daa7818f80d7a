"""
A pipeline from a script or a notebook: `brew.Pipeline(input=..., output=..., transform=...).run()`.

It is the same run as on the command line, with the same checks, on this process's Spark session if there is one. The
function may be a lambda or defined in a notebook cell: Spark's tasks get it by value.
"""

from __future__ import annotations

import difflib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from brew import names
from brew.client_config import ClientConfig, checked_bootstrap, load
from brew.connection import Connection
from brew.driver.run import run
from brew.driver.run_context import ProgressView, RunProgress
from brew.errors import DeadlineExceeded, UsageError
from brew.jvm import dependencies
from brew.names import ExitCode
from brew.observability.status import Phase
from brew.preflight import allowed
from brew.record import Record
from brew.settings import ClaimsSettings, OnError, OnMissingPosition, PipelineSettings, Reader, SparkSettings
from brew.transformation import transformation

_log = logging.getLogger("brew")
_STOP_S = 30.0

Transform = Callable[[Record], Any] | str


@dataclass(frozen=True, slots=True)
class Result:
    """
    The result of a run: input records by their result, and the number of records written to its output topics.

    ``reasons``: reason for rejection -> number of records. ``failed``: transactions that were repeated.
    """

    transformed: int
    rejected: int
    dropped: int
    written: int
    transactions: int
    failed: int
    seconds: float
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of input records done."""
        return self.transformed + self.rejected + self.dropped


@dataclass(frozen=True, slots=True)
class RunStatus:
    """``state``: starting, standing-by, working, stopping, stopped or failed; ``lag``: offsets left to read."""

    state: str
    lag: int
    result: Result


class Pipeline:
    """One input topic, a function, and where its results go."""

    def __init__(
        self,
        *,
        input: str,  # noqa: A002 - the option's name
        output: str,
        transform: Transform,
        bootstrap: str = names.BOOTSTRAP,
        group: str | None = None,
        dead_letter: str | None = None,
        also_output: str | Sequence[str] = (),
        on_error: str = OnError.END.value,
        reader: str = Reader.DIRECT.value,
        master: str = "local[*]",
        client_config: str | Path | None = None,
        py_files: str | Path | Sequence[str | Path] = (),
        conf: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """
        Check the settings, without contacting a broker.

        ``group`` defaults to `brew-<output>`, ``dead_letter`` to `<output>.dlq`. ``master``: where Spark runs, unless
        there is a session; `none` runs without Spark. ``conf``: Spark's own settings. ``more``: fields of
        `brew.settings.PipelineSettings`, such as `max_records_per_transaction=10_000`.

        Raises:
            UsageError: an invalid setting, or a function that can't be loaded.
            Refused: a file of ``client_config`` holds a secret, and every user of this machine may read it.
        """
        checked = _checked(more)
        texts = {"input": input, "output": output, "bootstrap": bootstrap, "master": master}
        for name, value in {**texts, "group": group or "", "dead_letter": dead_letter or ""}.items():
            _check_type(name, value, (str,), "str")
        _check_type("transform", transform, (str, Callable, NoneType), "str or a function")
        _check_type("client_config", client_config, (str, Path, NoneType), "str, Path or None")
        _check_type("conf", conf, (Mapping, NoneType), "Mapping or None")
        known = ClientConfig() if client_config is None else load(Path(client_config))
        jvm_dir = str(dependencies.home(None))
        transform = _located(transform) if isinstance(transform, str) else transform
        files = _texts("py_files", py_files)
        if absent := [file for file in files if not Path(file).exists()]:
            raise UsageError(
                f"py_files is {absent[0]!r}: there is no such file; give modules (.py), archives or wheels"
            )
        self.settings = PipelineSettings(
            Connection(checked_bootstrap(bootstrap), known.properties, known.secrets, known.source),
            input,
            output,
            dead_letter or f"{output}.dlq",
            group or f"brew-{output}",
            SparkSettings(master, jvm_dir, conf or {}, py_files=files),
            reader=_one_of(Reader, "reader", reader),
            transform=transform,
            on_error=_one_of(OnError, "on_error", on_error),
            also_output=_texts("also_output", also_output),
            **checked,
        )
        transformation(self.settings)

    def run(self) -> Result:
        """
        Process all records that are there now, then return.

        Raises:
            BrewError: refused, unreachable, or the function raised; earlier commits remain.
        """
        progress = _RunProgress()
        _work(self.settings, threading.Event(), progress)
        return progress.result()

    def start(self) -> PipelineRun:
        """Follow the input in the background until `stop` is called."""
        return PipelineRun(replace(self.settings, follow=True))


class PipelineRun:
    """A run in the background; as a context manager, it is stopped at the end of the block."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._board, self._stop = _RunProgress(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[settings], name="brew-pipeline", daemon=True)
        self._thread.start()

    def _run(self, settings: PipelineSettings) -> None:
        try:
            _work(settings, self._stop, self._board)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the caller's thread
            self._error = error
            _log.error("the pipeline ended: %s", error)
        finally:
            self._board.phase(Phase.STOPPED)

    @property
    def status(self) -> RunStatus:
        """The state, the lag and the counts at this moment."""
        state = "failed" if self._error is not None else self._board.state.value
        return RunStatus(state, self._board.lag(), self._board.result())

    def stop(self, timeout_s: float = _STOP_S) -> Result:
        """
        Finish the running transactions, then stop.

        Raises:
            BrewError: as `wait`.
        """
        self._stop.set()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> Result:
        """
        Wait for the end of the run.

        Raises:
            DeadlineExceeded: it is still running after ``timeout_s``.
            BrewError: the error that ended it.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the pipeline still runs after {timeout_s:g} s; call stop(), or wait longer")
        if self._error is not None:
            raise self._error
        return self._board.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self.stop()
        else:
            self._stop.set()
            self._thread.join(_STOP_S)


def work(settings: PipelineSettings, stop: threading.Event, progress: RunProgress, view: ProgressView) -> ExitCode:
    """Run alone or as one of several drivers, depending on the settings; like `brew.driver.run.run`."""
    if settings.stand_by is None and settings.share is None:
        return run(settings, stop, progress, view)
    from brew.driver import coordination  # noqa: PLC0415 - imports only what the run uses

    run_as_one_of_several = coordination.run_sharing if settings.stand_by is None else coordination.run
    return run_as_one_of_several(settings, stop, progress, view)


def _work(settings: PipelineSettings, stop: threading.Event, progress: _RunProgress) -> None:
    began = time.monotonic()
    try:
        work(settings, stop, progress, _Notes())
    finally:
        progress.seconds = time.monotonic() - began


class _RunProgress(RunProgress):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.seconds = Phase.STARTING, 0.0

    def phase(self, phase: Phase, detail: str = "") -> None:  # noqa: ARG002 - for observers
        self.state = phase

    def lag(self) -> int:
        return sum(partition.lag for partition in list(self.partitions.values()))

    def result(self) -> Result:
        totals = self.totals
        return Result(
            totals.enriched,
            totals.rejected,
            totals.dropped,
            totals.written,
            totals.transactions,
            totals.failed + totals.fenced,
            round(self.seconds or time.monotonic() - self.started, 3),
            dict(self.reasons),
        )


class _Notes(ProgressView):
    def note(self, note: str) -> None:
        _log.info("%s", note)


def _located(transform: str) -> str:
    """
    Return the name of a function with its file's whole path: files are loaded once per name, and a relative one names
    another file in another working directory.

    Raises:
        UsageError: this thread is loading a function, and would wait for itself.
    """
    frame = sys._getframe()  # noqa: SLF001 - the lock of `brew.load` does not tell whose it is
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "brew.load":
            raise UsageError(
                f"a brew.Pipeline with transform={transform!r} is made while a function is loaded: put what a script "
                "does under `if __name__ == '__main__':`"
            )
    is_file = transform.rpartition(":")[0].endswith(".py")
    return str(Path(transform).expanduser().absolute()) if is_file else transform


_OWN = {"connection", "input", "output", "dead_letter", "group", "spark", "follow"}


def _checked(more: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return settings with the types that `PipelineSettings` has; it compares numbers, and enums by identity.

    Raises:
        UsageError: an unknown setting, of which the nearest known one is named, or a value of the wrong type.
    """
    known = {name: kind for name, kind in get_type_hints(PipelineSettings).items() if name not in _OWN}
    return {name: _typed(name, value, known) for name, value in more.items()}


def _typed(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"brew.Pipeline has no setting {name!r}; {hint}")
    if name == "on_missing_position":
        return _one_of(OnMissingPosition, name, value)
    if name == "allow":
        return allowed(_texts(name, value))
    if name in {"stand_by", "share"} and isinstance(value, bool):
        return ClaimsSettings() if value else None
    kinds = tuple(get_origin(kind) or kind for kind in get_args(known[name]) or (known[name],))
    if not isinstance(value, (*kinds, int) if float in kinds else kinds):
        wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        raise UsageError(f"{name} is {value!r}; it has to be of type {wanted}")
    return value


def _check_type(name: str, value: object, kinds: tuple[Any, ...], wanted: str) -> None:
    if not isinstance(value, kinds):
        raise UsageError(f"{name} is {value!r}; it has to be of type {wanted}")


def _texts(name: str, value: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Return a sequence of names; a single one counts as a sequence of one, not as its characters."""
    _check_type(name, value, (str, Path, Iterable), "str or a sequence of them")
    found = (value,) if isinstance(value, str | Path) else tuple(value)
    for one in found:
        _check_type(name, one, (str, Path), "str")
    return tuple(str(one) for one in found)


def _one_of(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise UsageError(f"{name} is {value!r}; it is one of {', '.join(kind)}") from error
