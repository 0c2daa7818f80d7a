"""The tests' PostgreSQL and Redis: the sandbox's, from Debian's packages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sandbox.store import Store

_Store = TypeVar("_Store", bound=Store)


@contextmanager
def store(kind: type[_Store], properties: Mapping[str, str] | None = None) -> Iterator[_Store]:
    """
    Yield a server on a free port, which is removed at the end together with its data.

    Raises:
        Refused: it is not installed; the text names `make setup-stores`. Tests then fail, and are not skipped.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"brew-test-{kind.name}-"))
    directory.chmod(0o711)  # PostgreSQL does not run as root
    try:
        with kind.start(directory, properties=properties) as found:
            yield found
    finally:
        shutil.rmtree(directory, ignore_errors=True)
