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


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's key and certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def fresh(cls) -> Authority:
        key, name = _key(), _name("brew-sandbox-authority")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(name, name, key, *_span(DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
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
        """
        Return a key and a client certificate of ``name``, as PEM, which is also a server certificate for ``hosts``.

        With negative ``days``, it expired that long ago.
        """
        key = _key()
        builder = _builder(_name(name), self.certificate.subject, key, *_span(days))
        # Strict verification (the default since Python 3.13) requires an authority key identifier.
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(signed_by, critical=False)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return _pem(key), certificate.public_bytes(serialization.Encoding.PEM)


def ends(certificate: Path) -> dt.datetime:
    """Return the time at which a certificate expires."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def _span(days: float) -> tuple[dt.datetime, dt.datetime]:
    now = dt.datetime.now(dt.UTC)
    end = now + dt.timedelta(days=days)
    return min(now, end - dt.timedelta(days=1)) - _SLACK, end


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
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
