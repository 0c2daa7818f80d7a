"""How a function reaches Spark's tasks: by value if its module is only local, by name if it is installed or shipped."""

from __future__ import annotations

import atexit
import functools
import io
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark import SparkContext, cloudpickle

from brew.errors import UsageError

_ARCHIVES = (".zip", ".egg", ".whl")
_registering = threading.Lock()


def pickled(function: Callable[..., Any], py_files: Iterable[str] = ()) -> bytes:
    """Serialize a function with its package or file, unless executors have it; raises `UsageError` if it can't be."""
    inner: Any = function
    while isinstance(inner, functools.partial):  # its own module is `functools`
        inner = inner.func
    package = sys.modules.get((getattr(inner, "__module__", None) or "").partition(".")[0])
    by_value = package is not None and package.__name__ != "__main__" and not _known_to_executors(package, py_files)
    with _registering:  # two runs that start at once would end each other's registration
        if by_value:
            cloudpickle.register_pickle_by_value(package)
        try:
            payload = io.BytesIO()
            _Pickler(payload).dump(function)
        except Exception as error:
            raise UsageError(
                f"{function.__module__}:{getattr(function, '__qualname__', function)} can't be sent to Spark's tasks "
                f"({type(error).__name__}: {error}); make what can't travel inside of the function, at its first call, "
                "or give its module to --py-files"
            ) from error
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(package)
    return payload.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends functions with a cache by value where it sends others by value; cloudpickle sends them by name only."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, functools._lru_cache_wrapper):  # noqa: SLF001 - the type has no public name
            by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
            if any(f"{obj.__module__}.".startswith(f"{name}.") for name in by_value):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return made


def _known_to_executors(package: Any, py_files: Iterable[str]) -> bool:
    """Return whether executors can import it: Spark expects installed packages there, and ``py_files`` are sent."""
    if package.__name__ == __name__.partition(".")[0]:
        return True
    file = getattr(package, "__file__", None)
    if file is None:
        paths = list(getattr(package, "__path__", ()))
        file = paths[0] if paths else None
    if file is None:  # built in
        return True
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    path = Path(file).resolve()
    in_archive = any(part.endswith(_ARCHIVES) for part in path.parts)
    sent = path in {Path(given).resolve() for given in py_files} and path.stem == package.__name__
    return in_archive or sent or any(path.is_relative_to(Path(folder).resolve()) for folder in installed)


def add_py_files(context: SparkContext, paths: Iterable[str]) -> None:
    """Send modules, archives and wheels to all tasks; a wheel of pure Python is an archive with another suffix."""
    for path in paths:
        given = Path(path).resolve()
        context.addPyFile(str(_kept_zip(given, given.stat().st_mtime_ns) if given.suffix == ".whl" else given))


@functools.cache
def _kept_zip(wheel: Path, _modified_ns: int) -> Path:
    """Return the same copy of a wheel for all runs of this process: Spark serves it from there until it ends."""
    folder = tempfile.mkdtemp(prefix="brew-wheel-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copyfile(wheel, Path(folder, f"{wheel.name}.zip")))
