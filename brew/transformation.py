"""What an application does with a record: the seam between the library and applications."""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.range_transaction import Enrich, Evidence
from brew.settings import PipelineSettings


class Prepared(NamedTuple):
    """
    What one transaction transforms its records with.

    ``evidence``: the header that each result carries. ``malformed``: records of the table that it looks up in which
    could not be used; None without a table.
    """

    enrich: Enrich
    evidence: Evidence | None = None
    malformed: int | None = None


class Transformation(Protocol):
    """
    What becomes of a record. Travels to the workers, so it holds values only.

    ``whole_input_first``: all records of a transaction are read before it begins, since what they are transformed with
    has to be newer than they are.
    """

    @property
    def whole_input_first(self) -> bool: ...

    def ready(self, connection: Connection, group: str, timeout_s: float) -> Prepared:
        """
        Prepare one transaction; called before its first step.

        Raises:
            BrewError: what the records are transformed with can't be had in time; nothing was begun.
        """
        ...

    def check(self, connection: Connection, deadline: Deadline) -> None:
        """
        Look before a run whether the cluster has what the transformation needs.

        Raises:
            Refused: something is missing; says what to do.
        """
        ...

    def release(self, *, loading_only: bool = False) -> None:
        """Let go of what this process keeps for it; ``loading_only``: give up loads that run, and keep the rest."""
        ...


def transformation(settings: PipelineSettings) -> Transformation:
    """
    The transformation that the settings name.

    Raises:
        UsageError: there is no such module, or nothing of that name in it.
    """
    module, _, name = settings.transform.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"transform is {settings.transform!r}, which can't be loaded: {error}; write module:name"
        ) from error
    made: Transformation = factory(settings.limits, settings.profiles)
    return made
