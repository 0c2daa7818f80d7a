"""`sandbox setup`: a Kafka broker and Kafka's own tools."""

from __future__ import annotations

from pathlib import Path

from protocol.jvm.command import setup_command
from protocol.jvm.parts import KAFKAS, Part

_TEXT = """Fetch a Kafka broker and Kafka's own tools, and compare them with the checksums of this version.

\b
Examples:
  brew-sandbox setup                            into the user's cache, from a Maven repository
  brew-sandbox setup --from /media/jars         on a machine without a network
  brew-sandbox setup --kafka 3.9.2              an older one, for `sandbox up --kafka 3.9.2`
"""


def _nothing_else(_place: Path) -> None:
    """The broker needs its jars only."""


setup = setup_command(Part.KAFKA, _TEXT, _nothing_else, KAFKAS)
