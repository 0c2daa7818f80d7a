"""The user that a command is to secure brokers, derived from its words; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

ADMIN, PIPELINE, DOWNSTREAM, PROOF = "admin", "pipeline", "downstream", "proof-reader"
OPERATOR = "operator"

_LOOKS = {"lag", "explain", "xray", "ui", "top"}
_ENDS = {"doctor", "dlq"}
_CHECKS = {"verify", "end-offsets", "group-describe", "read"}
_MODULES = {"harness.claims_worker": DOWNSTREAM, "downstream": DOWNSTREAM}
_TARGETS = {
    "topic-create-all": ADMIN,
    "seed": ADMIN,
    "run-pipeline": PIPELINE,
    "run-pipeline-crash": PIPELINE,
    "run-downstream": DOWNSTREAM,
    "run-downstream-ru": DOWNSTREAM,
    "verify": PROOF,
    "end-offsets": PROOF,
    "group-describe": PROOF,
}


def user(words: Sequence[str]) -> str | None:
    """
    Return the user for a command line, or None if it is not one of our programs.

    Creating topics, writing orders, ending others' transactions and moving dead letters is up to the administrator.
    """
    if words and Path(words[0]).name == "make":
        return next((_TARGETS[word] for word in words[1:] if word in _TARGETS), None)
    if "-c" in words:
        return PIPELINE if "from pipeline.__main__ import main" in words[words.index("-c") + 1] else None
    if words and Path(words[0]).name.startswith("brew-"):
        words = ["-m", Path(words[0]).name.removeprefix("brew-"), *words[1:]]
    if "-m" not in words:
        return None
    module, *rest = words[words.index("-m") + 1 :]
    command = rest[0] if rest else ""
    if module == "pipeline":
        return OPERATOR if command in _LOOKS else ADMIN if command in _ENDS else PIPELINE
    if module == "proof":
        return PROOF if command in _CHECKS else ADMIN
    return _MODULES.get(module)


def is_kafkas_own(words: Sequence[str]) -> bool:
    """Return whether this is one of Kafka's own tools, which take a file of Java settings and the brokers' address."""
    return "--bootstrap-server" in words and "--command-config" not in words


def place(words: Sequence[str], known: Mapping[str, object]) -> str | None:
    """Return which of the ``known`` addresses a command refers to."""
    return next((address for word in words for address in [word.rpartition("=")[2]] if address in known), None)
