"""A small certificate authority: PEM keys and certificates, valid for a few days, readable only by the owner."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandbox.process import write_private

DAYS = 7
_SLACK = dt.timedelta(minutes=5)  # clock skew between machines
_OTHER_USES = (
    *("content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def fresh(cls) -> Authority:
        key, name = _key(), _name("brew-sandbox-authority")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, **dict.fromkeys(_OTHER_USES, False)
        )
        builder = _builder(name, name, key, DAYS).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def read(cls, folder: Path) -> Authority:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))

    def write(self, folder: Path) -> None:
        write_private(folder / "ca.key", _pem(self.key))
        write_private(folder / "ca.pem", self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: float = DAYS) -> tuple[bytes, bytes]:
        """Return key and client certificate as PEM, also a server's for ``hosts``; expired with negative ``days``."""
        key = _key()
        builder = _builder(_name(name), self.certificate.subject, key, days)
        # Strict verification (the default since Python 3.13) requires an authority key identifier.
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(signed_by, critical=False)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return _pem(key), certificate.public_bytes(serialization.Encoding.PEM)


def ends(certificate: Path) -> dt.datetime:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now, public = dt.datetime.now(dt.UTC), key.public_key()
    end = now + dt.timedelta(days=days)
    begin = min(now, end - dt.timedelta(days=1)) - _SLACK
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as PKCS #8, which Java can read too."""
    nothing = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, nothing)
