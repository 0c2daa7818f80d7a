"""
The origin of a result: commit, hash of the kernel's source files, versions.

The kernel is every module of ours that takes part in a transaction: the modules below and all that they import. The
sink's cells add the sink's modules, and those with one writer do without what only writing tasks run. A result is valid
only for the kernel with its hash. An installed wheel has no commit, but still has the hash.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import importlib.metadata
import io
import platform
import subprocess
import threading
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from brew.jvm import dependencies
from brew.jvm.dependencies import Part

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "unknown"
_KERNEL = ("brew.transaction", "brew.range_transaction", "brew.kafka.transaction")
_SINK = (*_KERNEL, "brew.sink.sink")
_TASKS = ("brew.sink.shared", "brew.sink.tasks", "brew.kafka.shared_writer", "brew.kafka.arrow_batches")
_BESIDE = ("brew.claims.", "brew.observability.")
"""Imported for the sink's settings and probes, but not part of a transaction."""
_SINK_ROWS = {"F39", "F40", "F41", "F42", "F43"}
_ONE_WRITER = "-one"
_PARSING = threading.Lock()  # Python 3.11's parser fails if two threads parse at once, as a campaign's lanes do
_PACKAGES = ("confluent-kafka", "kafka-python", "pyspark")
_GIT_S, _SHOWN = 10.0, 12


class Kernel(enum.Enum):
    """The part of the program whose transactions a cell is about."""

    RANGES = enum.auto()
    SINK_ONE = enum.auto()
    SINK_TASKS = enum.auto()

    @classmethod
    def of(cls, row: str, name: str) -> Self:
        """Return the part that a cell of this row and name is about."""
        if row not in _SINK_ROWS:
            return cls.RANGES
        return cls.SINK_ONE if name.endswith(_ONE_WRITER) else cls.SINK_TASKS


@dataclass(frozen=True, slots=True)
class MadeWith:
    """The origin fields of every result; `unknown` if the program or the brokers were not ours."""

    commit: str = UNKNOWN
    kernel: str = UNKNOWN
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, *, our_program: bool = True, our_brokers: bool = True, kind: Kernel = Kernel.RANGES) -> Self:
        known = versions() | ({} if our_brokers else {"kafka": UNKNOWN})
        return cls(commit() if our_program else UNKNOWN, kernel(kind=kind) if our_program else UNKNOWN, known)


def kernel_modules(root: Path = ROOT, *, kind: Kernel = Kernel.RANGES) -> dict[str, Path]:
    """Return the kernel's files by module name."""
    modules: dict[str, Path] = {}
    begin = {Kernel.RANGES: _KERNEL, Kernel.SINK_ONE: _SINK, Kernel.SINK_TASKS: _SINK + _TASKS}[kind]
    without = _TASKS if kind is Kernel.SINK_ONE else ()
    left = list(begin)
    while left:
        name = left.pop()
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        if name in modules or name.startswith((*_BESIDE, *without)) or (not path.is_file() and name not in begin):
            continue
        modules[name] = path
        left += _source(path).imports
    return dict(sorted(modules.items()))


def kernel(root: Path = ROOT, *, kind: Kernel = Kernel.RANGES) -> str:
    """Return the first hex digits of the hash of the kernel's code, without comments and docstrings."""
    digest = hashlib.sha256()
    for name, path in kernel_modules(root, kind=kind).items():
        digest.update(f"{name}\n".encode() + hashlib.sha256(_source(path).code).digest())
    return digest.hexdigest()[:_SHOWN]


def kernels() -> set[str]:
    """Return the current kernel's hashes, one for each part."""
    return {kernel(kind=kind) for kind in Kernel}


@dataclass(frozen=True, slots=True)
class _Source:
    """
    ``code``: a file without comments, docstrings and empty lines; the same for every version of Python. ``imports``:
    the modules that it may import, including names inside modules, which have no file.
    """

    code: bytes
    imports: tuple[str, ...]


def _source(path: Path) -> _Source:
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1024)
def _read(path: Path, _changed_ns: int, _size: int) -> _Source:
    """Parse a file; again only if it has changed, since each result asks for the kernel."""
    text = path.read_text(encoding="utf-8")
    with _PARSING:
        tree = ast.parse(text)
    imports: list[str] = []
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines[first:last] = [""] * (last - first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
    return _Source("\n".join(line.rstrip() for line in lines if line.strip()).encode(), tuple(imports))


def commit(root: Path = ROOT) -> str:
    """Return the checked-out commit, with `+changes` if tracked files differ from it; `unknown` without git."""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if head is None or not (root / ".git").exists():  # a repository that contains our virtual environment is not ours
        return UNKNOWN
    return head + ("+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *words: str) -> str | None:
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of client libraries, Spark, Python, and the sandbox's Kafka."""
    known = {name: importlib.metadata.version(name) for name in _PACKAGES}
    jars = [jar.stem for jar in dependencies.jars(Part.KAFKA, dependencies.home()) if jar.stem.startswith("kafka_")]
    return known | {"python": platform.python_version(), "kafka": jars[0].rpartition("-")[2] if jars else UNKNOWN}
