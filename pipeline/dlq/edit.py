"""Repair a value with a command of the user's: bytes to its stdin, the new value from its stdout."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from typing import Self

from protocol.errors import UsageError

_TOLD = 200


class EditFailed(Exception):
    """The command ended with another code than 0, or not in time."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The command's words (no shell), and how long it may take for one record."""

    command: tuple[str, ...]
    timeout_s: float

    @classmethod
    def parse(cls, text: str, timeout_s: float) -> Self:
        """
        Split ``text`` as a shell would.

        Raises:
            UsageError: a quote does not end, or there is no word.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--edit is {text!r}: {error}") from error
        if not words:
            raise UsageError("--edit is empty: give a command that reads a value and writes the repaired one")
        return cls(tuple(words), timeout_s)

    def __call__(self, value: bytes | None) -> bytes:
        """
        The repaired value; a record without one gives the command nothing to read.

        Raises:
            EditFailed: it stays as it is.
            UsageError: the command can't be started.
        """
        try:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"--edit can't start {self.command[0]!r}: {error.strerror}") from error
        with child:
            try:
                edited, complaint = child.communicate(value or b"", timeout=self.timeout_s)
            except subprocess.TimeoutExpired as error:
                os.killpg(child.pid, signal.SIGKILL)
                raise EditFailed(f"--edit took longer than {self.timeout_s:g} s (--edit-timeout)") from error
            except BaseException:
                os.killpg(child.pid, signal.SIGKILL)
                raise
        if child.returncode:
            told = complaint.decode("utf-8", "replace").strip()[-_TOLD:]
            raise EditFailed(f"--edit ended with {child.returncode}" + (f": {told}" if told else ""))
        return edited
