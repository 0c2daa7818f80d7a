"""A mutant: one bug, put into the product's own classes and removed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


class Changes:
    """Replaced attributes of the product; all of them are restored at the end of the block."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def set(self, owner: Any, name: str, new: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by ``new(old)``."""
        known, old = vars(owner)[name], getattr(owner, name)
        setattr(owner, name, new(old))
        self._undo.append(lambda: setattr(owner, name, known))

    def wrap(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace the function ``owner.name`` by one that returns ``call(old, *arguments, **options)``."""
        self.set(owner, name, lambda old: lambda *arguments, **options: call(old, *arguments, **options))

    def at_end(self, act: Callable[[], object]) -> None:
        self._undo.append(act)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for act in reversed(self._undo):
            act()


Change = Callable[[Changes], None]
Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One bug.

    ``wrong`` is one sentence, ``breaks`` the decision it violates (D1 to D26 of the design's reference), ``on`` the
    scenario in which it can show, ``named`` what must name it: an anomaly of `proof verify`, or a sign of the run.
    """

    name: str
    wrong: str
    breaks: str
    on: str
    named: str
    change: Change


def by_name(module: Any) -> dict[str, Mutant]:
    """Return the mutants of a module, in source order."""
    return {found.name: found for found in vars(module).values() if isinstance(found, Mutant)}


def mutant(breaks: str, *, on: str, named: str) -> Callable[[Change], Mutant]:
    """Return a decorator that makes a mutant of a function; its docstring becomes the sentence."""

    def make(change: Change) -> Mutant:
        return Mutant(change.__name__.replace("_", "-"), (change.__doc__ or "").strip(), breaks, on, named, change)

    return make
