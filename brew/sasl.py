"""
Kafka logins without a password: tokens (OAUTHBEARER, by OIDC or from AWS) and Kerberos tickets (GSSAPI).

The settings that each needs, by librdkafka's names if it has them, their allowed values, and their Java equivalents.
`brew.kafka.oauth` requests the tokens.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

OAUTHBEARER, GSSAPI = "OAUTHBEARER", "GSSAPI"
METHOD, OIDC, AWS = "sasl.oauthbearer.method", "oidc", "aws_msk_iam"
CLIENT_ID, CLIENT_SECRET = "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"
SCOPE, EXTENSIONS = "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"
TOKEN_URL, TOKEN_CA = "sasl.oauthbearer.token.endpoint.url", "https.ca.location"
REGION = "sasl.oauthbearer.aws.region"
SERVICE, PRINCIPAL, KEYTAB = "sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab"

ALLOWED: Mapping[str, tuple[str, ...] | None] = {
    METHOD: (OIDC, AWS),
    CLIENT_ID: None,
    CLIENT_SECRET: None,
    SCOPE: None,
    EXTENSIONS: None,
    TOKEN_URL: None,
    TOKEN_CA: None,
    REGION: None,
    SERVICE: None,
    PRINCIPAL: None,
    KEYTAB: None,
}
_METHODS = {OIDC: (CLIENT_ID, CLIENT_SECRET, TOKEN_URL), AWS: (REGION,)}
# librdkafka passes these to a shell (`kinit`); a region becomes part of a host name.
_WORDS = {SERVICE: r"[\w.-]+", PRINCIPAL: r"[\w.@/-]+", KEYTAB: r"[\w./-]+", REGION: r"[a-z0-9-]+"}
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_AWS = "software.amazon.msk.auth.iam"


def wrong_value(name: str, value: str) -> str | None:
    """Return why a value is refused, as a clause, or None if it is allowed."""
    pattern = _WORDS.get(name)
    if pattern is not None and not re.fullmatch(pattern, value):
        return "it may hold letters, digits and . - _ / @ only, since a command or a host's name is made of it"
    if name == TOKEN_URL:
        parts = urlsplit(value)
        if parts.scheme != "https" and not (parts.scheme == "http" and _loopback(parts.hostname or "")):
            return "it has to begin with https:// (http:// for this machine alone): the secret is sent there"
    return None


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def missing(mechanism: str, given: Mapping[str, str]) -> list[str]:
    """Return the settings that a mechanism needs and that are not ``given``."""
    if mechanism == GSSAPI:
        pair = {PRINCIPAL, KEYTAB}
        needed: list[str] = [SERVICE, *sorted(pair if pair & given.keys() else ())]
    else:
        needed = [METHOD, *_METHODS.get(given.get(METHOD, ""), ())]
    return [name for name in needed if name not in given]


def owner(settings: Mapping[str, Any]) -> str | None:
    """Return whose login it is, for messages about missing rights; only the brokers know the principal."""
    if CLIENT_ID in settings:
        return f"the principal of client {settings[CLIENT_ID]}"
    if REGION in settings:
        return "the AWS identity of this process"
    if PRINCIPAL in settings:
        return f"the principal of {settings[PRINCIPAL]}"
    return "the owner of this process's Kerberos ticket" if SERVICE in settings else None


def java_settings(mechanism: str, ours: Mapping[str, Any]) -> dict[str, str]:
    """Return the login settings of a Java client; AWS needs the jar `software.amazon.msk:aws-msk-iam-auth`."""
    if mechanism == GSSAPI:
        options = {
            "useKeyTab": "true",
            "storeKey": "true",
            "keyTab": ours.get(KEYTAB),
            "principal": ours.get(PRINCIPAL),
        }
        login = options if KEYTAB in ours else {"useTicketCache": "true"}
        jaas = _jaas("com.sun.security.auth.module.Krb5LoginModule", login)
        return {"sasl.mechanism": GSSAPI, SERVICE: str(ours[SERVICE]), "sasl.jaas.config": jaas}
    if ours[METHOD] == AWS:
        return {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": f"{_AWS}.IAMLoginModule required;",
            "sasl.client.callback.handler.class": f"{_AWS}.IAMClientCallbackHandler",
        }
    login = {"clientId": ours[CLIENT_ID], "clientSecret": ours[CLIENT_SECRET], "scope": ours.get(SCOPE)}
    login |= {f"extension_{name}": value for name, value in extensions(ours).items()}
    if TOKEN_CA in ours:
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ours[TOKEN_CA]}
    return {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.jaas.config": _jaas(f"{_OAUTH}.OAuthBearerLoginModule", login),
        "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        TOKEN_URL: str(ours[TOKEN_URL]),
    }


def extensions(ours: Mapping[str, Any]) -> dict[str, str]:
    """Parse the login's extensions, `name=value,name=value`, into a mapping."""
    pairs = (one.partition("=") for one in str(ours.get(EXTENSIONS, "")).split(",") if one)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _jaas(module: str, options: Mapping[str, Any]) -> str:
    words = [f"{name}={quoted(str(value))}" for name, value in options.items() if value is not None]
    return f"{module} required {' '.join(words)};"


def quoted(text: str) -> str:
    """
    Quote a JAAS value, which Kafka reads with Java's StreamTokenizer.

    Between quotes a backslash begins an escape, and a quote ends the text.
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
