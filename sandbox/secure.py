"""
A cluster with security: TLS on every connection, users with passwords or certificates, and ACLs for each.

Clients have two listeners, by password (SCRAM or PLAIN, over TLS) and by certificate, as brokers and controllers do.
Passwords are set through the second one, since arguments of the format command would show them to everybody.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brew import acl
from brew.client_config import load
from brew.connection import SCRAM, Connection, Secret, jaas, java_properties, java_settings
from brew.deadline import Deadline
from brew.kafka import clients, cluster_admin
from sandbox.layout import Layout, Node
from sandbox.process import write_private

ADMIN, BROKER = "admin", "broker"
USERS = (ADMIN, *acl.USERS)
_RENEW = dt.timedelta(days=2)
_PASSWORD_BYTES, _AN_HOUR_AGO = 24, -1 / 24
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_LOOK_S = 0.01
_CONNECTIONS_IN_A_ROW = 12
"""Number of consecutive connections after which each of a broker's network threads has accepted one."""


@dataclass(frozen=True, slots=True)
class Security:
    """The secrets and settings of a secure cluster, in a folder that only its owner can open."""

    folder: Path

    @classmethod
    def of(cls, layout: Layout) -> Security:
        return cls(layout.directory / "secure")

    def prepare(self, layout: Layout, *, renew: bool) -> None:
        """Create missing passwords and client settings; with ``renew``, missing or expiring certificates too."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        if not (self.folder / "passwords.json").exists():
            made = {user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in USERS}
            write_private(self.folder / "passwords.json", json.dumps(made).encode())
        if renew and self._is_old():
            from sandbox.certificates import Authority  # noqa: PLC0415 - 0.1 s, only for secure clusters

            authority = Authority.fresh()
            authority.write(self.folder)
            for user in USERS:
                for kind, content in zip(("key", "pem"), authority.issue(user), strict=True):
                    write_private(self.folder / f"{user}.{kind}", content)
            self.certify(layout)
        for user in USERS:
            self._write_files(user)

    def certify(self, layout: Layout, *, expired: bool = False) -> Path:
        """Create a new certificate for the brokers; an expired one goes into a separate file."""
        from sandbox.certificates import DAYS, Authority  # noqa: PLC0415 - as above

        hosts = sorted({"localhost", "127.0.0.1", *(node.host for node in layout.nodes)})
        issued = Authority.read(self.folder).issue(BROKER, hosts, days=_AN_HOUR_AGO if expired else DAYS)
        path = self.folder / ("broker-expired.pem" if expired else "broker.pem")
        write_private(path, b"".join(issued))
        return path

    def _is_old(self) -> bool:
        from sandbox.certificates import ends  # noqa: PLC0415 - as above

        certificate, issued = self.folder / "ca.pem", self.folder / "broker.pem"
        there = certificate.exists() and issued.exists()
        return not there or ends(certificate) < dt.datetime.now(dt.UTC) + _RENEW

    def passwords(self) -> dict[str, Secret]:
        kept = json.loads((self.folder / "passwords.json").read_text())
        return {user: Secret(word) for user, word in kept.items()}

    def config(self, user: str, *, certificate: bool = False) -> Path:
        """Return the file for `--client-config`, by password or certificate (for the layout's `bootstrap_mutual`)."""
        return self.folder / f"{user}{'-certificate' if certificate else ''}.properties"

    def java_config(self, user: str) -> Path:
        """Return the file for the `--command-config` of Kafka's own tools."""
        return self.folder / f"{user}.java.properties"

    def connection(self, layout: Layout, user: str = ADMIN) -> Connection:
        """Return a connection by certificate, which works before passwords are set."""
        config = load(self.config(user, certificate=True))
        return Connection(layout.bootstrap_mutual, config.properties, config.secrets, config.source)

    def _write_files(self, user: str) -> None:
        password = self.passwords()[user].reveal()
        by_password = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM[0],
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": "ca.pem",
        }
        by_certificate = {
            "security.protocol": "SSL",
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": f"{user}.pem",
            "ssl.key.location": f"{user}.key",
        }
        for certificate, settings in ((False, by_password), (True, by_certificate)):
            text = "".join(f"{name}={value}\n" for name, value in settings.items())
            text = f"# Credentials of `{user}` for --client-config, see docs/SECURITY.md\n{text}"
            write_private(self.config(user, certificate=certificate), text.encode())
        config = load(self.config(user))
        java = java_settings(Connection("", config.properties, config.secrets))
        write_private(self.java_config(user), java_properties(java).encode())

    def create_users(self, layout: Layout, deadline: Deadline) -> None:
        """Set passwords and ACLs of a new cluster, only once: rights revoked later stay revoked."""
        if (mark := self.folder / "introduced").exists():
            return
        client = clients.admin(self.connection(layout))
        cluster_admin.set_passwords(client, self.passwords(), SCRAM, deadline)
        for user in acl.USERS:
            cluster_admin.grant(client, acl.rights_of(user), f"User:{user}", deadline)
        mark.touch()


def settings(layout: Layout, node: Node) -> dict[str, object]:
    home = Security.of(layout)
    plain = " ".join(f'user_{user}="{password.reveal()}"' for user, password in home.passwords().items())
    module = jaas("PLAIN", "-", "-").split(" username", maxsplit=1)[0]
    scram = jaas(SCRAM[0], "-", "-").split(" username", maxsplit=1)[0]
    spots = {"SECURE": node.port, "MUTUAL": node.mutual_port, "CONTROLLER": node.controller_port}
    return {
        "listeners": ",".join(f"{name}://{node.host}:{port}" for name, port in spots.items()),
        "listener.security.protocol.map": "SECURE:SASL_SSL,MUTUAL:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "MUTUAL",
        "sasl.enabled.mechanisms": ",".join((*SCRAM, "PLAIN")),
        "listener.name.secure.plain.sasl.jaas.config": f"{module} {plain};",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": home.folder / "broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": home.folder / "ca.pem",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z-]+)$/$1/,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:{BROKER}",
        "allow.everyone.if.no.acl.found": "false",
    } | {f"listener.name.secure.{mechanism.lower()}.sasl.jaas.config": f"{scram};" for mechanism in SCRAM}


def usage_text(layout: Layout) -> Sequence[str]:
    home = Security.of(layout)
    where = home.folder.relative_to(Path.cwd()) if home.folder.is_relative_to(Path.cwd()) else home.folder
    return (
        f"with a password: {layout.bootstrap}, with a certificate: {layout.bootstrap_mutual}",
        *(f"  {user:<13} --client-config {where}/{user}.properties" for user in USERS),
        "  create topics and orders, then run the pipeline:",
        f"  BREW_CLIENT_CONFIG={where}/{ADMIN}.properties make topic-create-all seed BOOTSTRAP={layout.bootstrap}",
        f"  BREW_CLIENT_CONFIG={where}/pipeline.properties make run-pipeline BOOTSTRAP={layout.bootstrap}",
    )


def document(layout: Layout) -> dict[str, object] | None:
    if not layout.secure:
        return None
    home = Security.of(layout)
    return {
        "bootstrap_mutual": layout.bootstrap_mutual,
        "client_configs": {user: str(home.config(user)) for user in USERS},
        "certificate_configs": {user: str(home.config(user, certificate=True)) for user in USERS},
    }


def await_certificate(node: Node, path: Path, deadline: Deadline) -> None:
    """Wait until each network thread of a broker, which switch on their own, presents the certificate in ``path``."""
    text = path.read_text()
    wanted = ssl.PEM_cert_to_DER_cert(text[text.index(_CERTIFICATE) :])
    in_a_row = 0
    while in_a_row < _CONNECTIONS_IN_A_ROW:
        shown = None
        with contextlib.suppress(TimeoutError):
            shown = ssl.get_server_certificate((node.host, node.port), timeout=max(_LOOK_S, deadline.remaining_s()))
        in_a_row = in_a_row + 1 if shown is not None and ssl.PEM_cert_to_DER_cert(shown) == wanted else 0
        deadline.check(f"the new certificate of broker {node.number}")
        time.sleep(_LOOK_S)
