"""
What programs on this machine leave for the live view: where a run answers, and the last verdict on a group.

Small files below the user's cache folder. A run's is removed when the run ends, or by whoever finds that its process is
gone; a verdict is replaced by the next one. Who cannot write there goes on without.
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
    """Where they are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "brew", "live")


@contextlib.contextmanager
def announced(url: str) -> Iterator[None]:
    """While the block lasts others on this machine find the `/status` at ``url``."""
    file = folder() / f"{_STATUS}-{os.getpid()}.json"
    _write(file, {"url": f"{url}/status"})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def announced_urls() -> list[str]:
    """The addresses of runs that are alive; what dead ones left is removed."""
    found = []
    for file in sorted(_files(_STATUS)):
        if _alive(file.stem.rpartition("-")[2]):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.append(str(orjson.loads(file.read_bytes())["url"]))
        else:
            with contextlib.suppress(OSError):
                file.unlink()
    return found


def remember_verdict(bootstrap: str, group: str, topics: tuple[str, str, str], document: dict[str, Any]) -> None:
    """Keep what `verify` found for who looks at the same cluster, group, input, output and dead letters."""
    _write(verdict_file(bootstrap, group, topics), document)
    for old in sorted(_files(_PROOF), key=_written_at)[:-_MOST_VERDICTS]:
        with contextlib.suppress(OSError):
            old.unlink()


def verdict_file(bootstrap: str, group: str, topics: tuple[str, str, str]) -> Path:
    """Where that is, whether there is one or not."""
    servers = sorted(server.strip().replace("localhost:", "127.0.0.1:") for server in bootstrap.split(","))
    name = hashlib.sha256("\n".join([*servers, group, *topics]).encode()).hexdigest()[:16]
    return folder() / f"{_PROOF}-{name}.json"


def _files(kind: str) -> list[Path]:
    try:
        return list(folder().glob(f"{kind}-*.json"))
    except OSError:
        return []


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _write(file: Path, document: dict[str, Any]) -> None:
    """Whole or not at all; readable by the user alone."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_bytes(orjson.dumps(document))
        fresh.replace(file)
