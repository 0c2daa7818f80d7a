"""Where a cluster is, and who asks; a value that every part may carry without touching a client library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.secrets import Secret

CLIENT_CONFIG = "BREW_CLIENT_CONFIG"
"""The environment's name for `--client-config`; programs hand it to the programs they start."""


@dataclass(frozen=True)
class Connection:
    """
    The bootstrap servers, and librdkafka settings (its own dotted names) that every client gets on top.

    ``secrets``: settings that are never shown. ``source``: the file of `--client-config` that settings came from.
    """

    bootstrap: str
    properties: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    source: str | None = None

    def settings(self) -> dict[str, str | int | bool]:
        """All settings as the client library takes them, secrets in clear: for the client's constructor alone."""
        return {**self.properties, **{name: secret.reveal() for name, secret in self.secrets.items()}}

    @property
    def user(self) -> str:
        """Who the brokers are told is asking, as people write it in ACLs."""
        named = self.properties.get("sasl.username")
        if named is not None:
            return f"User:{named}"
        if "ssl.certificate.location" in self.properties:
            return f"the owner of {self.properties['ssl.certificate.location']}"
        return "User:ANONYMOUS"
