"""Addresses with a password in them: what libraries would quote of it, nobody says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brew.errors import UsageError
from downstream.address import authorization, idempotency_key, masked_url
from downstream.postgres import DatabaseSettings, connect
from downstream.receive.postgres import CallSettings
from downstream.receive.redis import RedisSettings

SECRET = "canary"


def _database(address: str) -> None:
    connect(DatabaseSettings(address, "s"), "")


def _redis(address: str) -> None:
    RedisSettings(address).client()


@pytest.mark.parametrize(
    ("use", "option", "address"),
    [
        (_database, "DATABASE_URL", "postgresql//u:canary@localhost/db"),
        (_database, "DATABASE_URL", "canary"),
        (_database, "DATABASE_URL", "postgresql://u:canary%zz@localhost/db"),
        (_database, "DATABASE_URL", "postgresql://u:a@canary@localhost/db"),
        (_database, "DATABASE_URL", "postgresql://u:canary/1@localhost/db"),
        (_database, "DATABASE_URL", "postgresql://u:canary?1@localhost/db"),
        (_database, "DATABASE_URL", "postgresql://u:canary#1@localhost/db"),
        (_database, "DATABASE_URL", "host=localhost password=a canary"),
        (_redis, "REDIS_URL", "redis//:canary@localhost"),
        (_redis, "REDIS_URL", "canary"),
        (_redis, "REDIS_URL", "redis://:canary/1@localhost"),
        (_redis, "REDIS_URL", "redis://:canary#1@localhost"),
        (_redis, "REDIS_URL", "redis://:a@canary@localhost"),
        (_redis, "REDIS_URL", "redis://u:[canary@localhost"),
        (_redis, "REDIS_URL", "redis://localhost:canary"),
        (CallSettings, "--effect-url", "canary"),
        (CallSettings, "--effect-url", "http://localhost:canary/"),
        (CallSettings, "--effect-url", "http://u:canary/1@localhost/"),
    ],
)
def test_an_address_that_cant_be_read_is_refused_unseen(
    use: Callable[[str], object], option: str, address: str
) -> None:
    with pytest.raises(UsageError, match=option) as refused:
        use(address)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "no trace tells it either"


def test_addresses_that_can_be_read_are() -> None:
    """With every character of a password written as it has to be, and the forms that libraries know beside."""
    for address in ("redis://localhost", "redis://:p%40%2F%5D@localhost:1/2", "rediss://u:p@h/0?ssl_cert_reqs=none"):
        RedisSettings(address).client().close()
    for address in ("host=localhost password=p", "postgresql:///db", "postgresql://u:p%40@a:1,b:2/db?sslmode=require"):
        assert DatabaseSettings(address, "s").url == address


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("http://u:canary@localhost:8080/orders?token=canary#canary", "http://localhost:8080/orders"),
        ("https://localhost", "https://localhost"),
        ("http://localhost:canary/", "***"),
        ("http://[canary", "***"),
        ("canary", "***"),
        ("ftp://canary@localhost/", "***"),
    ],
)
def test_an_http_address_is_told_without_its_secrets(url: str, masked: str) -> None:
    assert masked_url(url) == masked


def test_settings_dont_show_addresses() -> None:
    url = "http://u:canary@localhost/"
    settings = [DatabaseSettings(f"postgresql://u:{SECRET}@h/db", "s"), RedisSettings(f"redis://:{SECRET}@h")]
    assert SECRET not in repr([*settings, CallSettings(url)])


def test_the_login_of_a_url_becomes_a_header() -> None:
    """RFC 7617's own example, a password written with %XX, and no login."""
    login = {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}
    assert authorization("https://Aladdin:open%20sesame@host:1/path?x=y@z") == login
    assert authorization("http://host/a@b") == {}


def test_an_id_that_no_header_can_carry_is_sent_as_its_digest() -> None:
    """Others are sent as they are; a space at the end would be lost, and make two ids one."""
    for plain in ("orders/3/17#1", "order_id:a b%0A"):
        assert idempotency_key(plain) == plain
    odd = ["order_id:\u2615", "order_id:a\nb", "order_id:a ", "order_id:caf\u00e9"]
    keys = [idempotency_key(message_id) for message_id in odd]
    assert len(set(keys)) == len(odd)
    assert all(key.startswith("sha256:") and key.isascii() for key in keys)
