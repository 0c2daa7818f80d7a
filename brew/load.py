"""Load the function that a setting names: `module:function` or `file.py:function`; suggests names for a typo."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from brew.errors import UsageError, text_of

SETTING = "TRANSFORM (--transform)"
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Loaded:
    """``target``: a function or a class; ``name``: how messages refer to it."""

    name: str
    target: Callable[..., Any]


def load(reference: str | Callable[..., Any] | None, py_files: tuple[str, ...] = ()) -> Loaded:
    """
    Return the function that ``reference`` names or is; ``py_files`` and the current folder are searched, too.

    A module or file is loaded once per process.

    Raises:
        UsageError: the function does not exist, can't be imported, or does not take exactly one argument.
    """
    if reference is None:
        raise UsageError(f"no transformation is given; set {SETTING} to module:function or file.py:function")
    if callable(reference):
        found = Loaded(getattr(reference, "__qualname__", type(reference).__name__), reference)
    else:
        with _lock:  # two threads that import a file at the same time would run it twice
            found = _load(reference, py_files)
    if not isinstance(found.target, type):
        _check_signature(found)
    return found


@functools.cache
def _load(reference: str, py_files: tuple[str, ...]) -> Loaded:
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{SETTING} is {reference!r}; write module:function or file.py:function")
    for path in py_files:
        if not Path(path).exists():
            raise UsageError(f"--py-files is {path!r}: there is no such file; give modules (.py), archives or wheels")
        _importable(Path(path).parent if path.endswith(".py") else Path(path))
    _importable(Path.cwd())  # for a console script, the path has the script's folder instead
    importlib.invalidate_caches()
    module = _from_file(reference, Path(place)) if place.endswith(".py") else _from_module(reference, place)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            there = [one for one in vars(target) if not one.startswith("_") and callable(getattr(target, one))]
            raise UsageError(f"{SETTING} is {reference!r}: {place} has no {name!r}{_nearest(name, there)}")
        target = getattr(target, part)
    if not callable(target):
        raise UsageError(f"{SETTING} is {reference!r}: that is {type(target).__name__}, a function is needed")
    return Loaded(reference, target)


def _importable(path: Path) -> None:
    if (entry := str(path.resolve())) not in sys.path:
        sys.path.append(entry)


def _from_file(reference: str, path: Path) -> ModuleType:
    full = path.expanduser().resolve()
    if not full.is_file():
        near = _nearest(path.name, (one.name for one in full.parent.glob("*.py"))) if full.parent.is_dir() else ""
        raise UsageError(f"{SETTING} is {reference!r}: there is no file {full}{near}")
    _importable(full.parent)
    known = sys.modules.get(full.stem)
    if known is not None and getattr(known, "__file__", None) == str(full):
        return known
    # A file may have the name of a module that is already loaded, such as `json.py`.
    name = full.stem if known is None else f"brew_transform_{full.stem}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UsageError(f"{SETTING} is {reference!r}: {full} can't be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_imported(reference, str(path), error) from error
    return module


def _from_module(reference: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not (place == missing or place.startswith(f"{missing}.")):
            raise _not_imported(reference, place, error) from error
        near = _nearest(missing, (one.name for one in pkgutil.iter_modules()))
        raise UsageError(
            f"{SETTING} is {reference!r}: there is no module {missing!r} in {Path.cwd()}, in --py-files, in PYTHONPATH "
            f"or among the installed packages{near}"
        ) from error
    except (Exception, SystemExit) as error:
        raise _not_imported(reference, place, error) from error


def _not_imported(reference: str, place: str, error: BaseException) -> UsageError:
    exits = "; put what a script does under `if __name__ == '__main__':`" if isinstance(error, SystemExit) else ""
    return UsageError(
        f"{SETTING} is {reference!r}: importing {place} failed: {type(error).__name__}: {text_of(error)}{exits}"
    )


def _nearest(name: str, there: Iterable[str]) -> str:
    names = sorted(set(there))
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(names[:8])}" if 0 < len(names) <= 8 else ""  # noqa: PLR2004 - what fits on a line


def _check_signature(found: Loaded) -> None:
    if inspect.iscoroutinefunction(found.target):
        raise UsageError(f"{SETTING}: {found.name} is an async function; write it with def")
    try:
        signature = inspect.signature(found.target)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(
            f"{SETTING}: {found.name}{signature} can't be called with one argument, the record: {error}"
        ) from error
