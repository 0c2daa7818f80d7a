"""
Small files in the user's cache, for the live view: the address of each run here, and the last verdict on a group. A
run's file is removed when it ends, or by the first reader that finds its process gone. A program that cannot write
there continues without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

_STATUS, _PROOF = "status", "verdict"
_MOST_VERDICTS = 20


def folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "brew", "live")


@contextlib.contextmanager
def announced(url: str) -> Iterator[None]:
    """Let others on this machine find the `/status` at ``url`` while the context is active."""
    file = folder() / f"{_STATUS}-{os.getpid()}.json"
    _write(file, {"url": f"{url}/status"})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def announced_urls() -> list[str]:
    """Return the addresses of live runs; remove the files of dead ones."""
    import psutil  # noqa: PLC0415 - 0.05 s, and runs only announce themselves

    found = []
    for file in sorted(_files(_STATUS)):
        process = file.stem.rpartition("-")[2]
        if process.isdecimal() and psutil.pid_exists(int(process)):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.append(str(orjson.loads(file.read_bytes())["url"]))
        else:
            with contextlib.suppress(OSError):
                file.unlink()
    return found


def remember_verdict(bootstrap: str, group: str, topics: tuple[str, str, str], document: dict[str, Any]) -> None:
    """Keep the verdict of `verify` for readers of the same cluster, group, input, output and dead-letter topics."""
    _write(verdict_file(bootstrap, group, topics), document)
    with contextlib.suppress(OSError):  # another process may remove them at the same time
        for old in sorted(_files(_PROOF), key=lambda file: file.stat().st_mtime)[:-_MOST_VERDICTS]:
            old.unlink(missing_ok=True)


def verdict_file(bootstrap: str, group: str, topics: tuple[str, str, str]) -> Path:
    servers = sorted(server.strip().replace("localhost:", "127.0.0.1:") for server in bootstrap.split(","))
    name = hashlib.sha256("\n".join([*servers, group, *topics]).encode()).hexdigest()[:16]
    return folder() / f"{_PROOF}-{name}.json"


def _files(kind: str) -> list[Path]:
    try:
        return list(folder().glob(f"{kind}-*.json"))
    except OSError:
        return []


def _write(file: Path, document: dict[str, Any]) -> None:
    """Write atomically, readable by the user alone; failures are ignored."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_bytes(orjson.dumps(document))
        fresh.replace(file)
