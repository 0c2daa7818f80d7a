"""Addresses with a password in them: what libraries would quote of it, nobody says."""

from __future__ import annotations

import pytest

from brew.errors import UsageError
from downstream.address import masked_url
from downstream.postgres import DatabaseSettings, connect
from downstream.receive import postgres as receiver_store
from downstream.receive.redis import RedisSettings

SECRET = "canary"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql//u:canary@localhost/db",
        "canary",
        "postgresql://u:canary%zz@localhost/db",
        "postgresql://u:a@canary@localhost/db",
        "postgresql://u:canary/1@localhost/db",
        "postgresql://u:canary?1@localhost/db",
        "postgresql://u:canary#1@localhost/db",
        "host=localhost password=a canary",
    ],
)
def test_a_databases_address_that_cant_be_read_is_refused_unseen(address: str) -> None:
    with pytest.raises(UsageError, match="DATABASE_URL") as refused:
        connect(DatabaseSettings(address, "s"), "")
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "no trace tells it either"


@pytest.mark.parametrize(
    "address",
    [
        "redis//:canary@localhost",
        "canary",
        "redis://:canary/1@localhost",
        "redis://:canary#1@localhost",
        "redis://:a@canary@localhost",
        "redis://u:[canary@localhost",
        "redis://localhost:canary",
    ],
)
def test_redis_address_that_cant_be_read_is_refused_unseen(address: str) -> None:
    with pytest.raises(UsageError, match="REDIS_URL") as refused:
        RedisSettings(address).client()
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "no trace tells it either"


def test_addresses_that_can_be_read_are() -> None:
    """With every character of a password written as it has to be, and the forms that libraries know beside."""
    for address in ("redis://localhost", "redis://:p%40%2F%5D@localhost:1/2", "rediss://u:p@h/0?ssl_cert_reqs=none"):
        RedisSettings(address).client().close()
    for address in ("host=localhost password=p", "postgresql:///db", "postgresql://u:p%40@a:1,b:2/db?sslmode=require"):
        assert DatabaseSettings(address, "s").url == address


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://u:canary@localhost:8080/orders?token=canary#canary", "http://localhost:8080/orders"),
        ("https://localhost", "https://localhost"),
        ("http://localhost:canary/", "***"),
        ("http://[canary", "***"),
        ("canary", "***"),
        ("ftp://canary@localhost/", "***"),
    ],
)
def test_an_http_address_is_told_without_its_secrets(url: str, told: str) -> None:
    assert masked_url(url) == told


@pytest.mark.parametrize("url", ["canary", "http://localhost:canary/", "http://u:canary/1@localhost/"])
def test_an_effects_address_that_cant_be_read_is_refused_unseen(url: str) -> None:
    with pytest.raises(UsageError, match="--effect-url") as refused:
        receiver_store.CallSettings(url)
    assert SECRET not in str(refused.value)


def test_settings_dont_show_addresses() -> None:
    url = "http://u:canary@localhost/"
    said = [DatabaseSettings(f"postgresql://u:{SECRET}@h/db", "s"), RedisSettings(f"redis://:{SECRET}@h")]
    assert SECRET not in repr([*said, receiver_store.CallSettings(url)])
