"""Logins by token and by Kerberos: what each needs, what a value may be, and the same for each client library."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from brew import sasl
from brew.client_config import load
from brew.connection import Connection, java_settings
from brew.errors import Denied, Refused, Retriable, UsageError
from brew.kafka import oauth

OIDC = """security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.method=oidc
sasl.oauthbearer.client.id=enricher
sasl.oauthbearer.client.secret=sesame"s
sasl.oauthbearer.scope=kafka
sasl.oauthbearer.extensions=cluster=lkc-1,pool=p
sasl.oauthbearer.token.endpoint.url={url}
"""
KERBEROS = """security.protocol=SASL_SSL
sasl.mechanism=GSSAPI
sasl.kerberos.service.name=kafka
sasl.kerberos.principal=enricher/host@EXAMPLE.COM
sasl.kerberos.keytab=/etc/enricher.keytab
"""
AWS = """security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.method=aws_msk_iam
sasl.oauthbearer.aws.region=eu-west-1
"""


@pytest.fixture(autouse=True)
def _no_token_is_kept() -> None:
    oauth.forget()


class Endpoint:
    """A token endpoint; ``requests``: who asked, and the forms."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.answer = (200, b'{"access_token": "t-%d", "expires_in": 100}')
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.requests.append((self.headers["Authorization"], form))
                code, body = endpoint.answer
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body.replace(b"%d", str(len(endpoint.requests)).encode()))

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    new = Endpoint()
    thread = threading.Thread(target=new.server.serve_forever, args=[0.01])
    thread.start()
    yield new
    new.server.shutdown()
    thread.join()
    new.server.server_close()


def connection(folder: Path, text: str) -> Connection:
    file = folder / "client.properties"
    file.write_text(text)
    file.chmod(0o600)
    config = load(file)
    return Connection("k:1", config.properties, config.secrets, config.source)


@pytest.fixture
def oidc(tmp_path: Path, endpoint: Endpoint) -> Connection:
    return connection(tmp_path, OIDC.format(url=endpoint.url))


def test_a_token_is_fetched_once_and_again_before_it_ends(oidc: Connection, endpoint: Endpoint) -> None:
    """By the client's credentials; each transaction has a producer of its own, so tokens are kept."""
    settings = oidc.settings()
    tokens = [oauth.token(settings, lambda now=now: now) for now in (0.0, 79.9, 80.0)]
    assert [one.text for one in tokens] == ["t-1", "t-1", "t-2"]
    assert [one.ends for one in tokens] == [100.0, 100.0, 180.0]
    assert endpoint.requests[0] == ("Basic ZW5yaWNoZXI6c2VzYW1lJTIycw==", "grant_type=client_credentials&scope=kafka")


def test_a_connection_with_another_scope_has_a_token_of_its_own(oidc: Connection) -> None:
    """One process may have a pipeline and a sink, of different rights."""
    settings = dict(oidc.settings())
    several = (settings, settings | {sasl.SCOPE: "else"}, settings)
    assert [oauth.token(one, lambda: 0.0).text for one in several] == ["t-1", "t-2", "t-1"]


def test_librdkafka_is_given_a_callback_and_nothing_that_it_does_not_know(oidc: Connection) -> None:
    settings = oauth.client_settings(oidc)
    token = settings.pop("oauth_cb")("")
    assert settings == {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    assert (token[0], token[3]) == ("t-1", {"cluster": "lkc-1", "pool": "p"})


def test_a_token_that_still_holds_is_used_while_the_endpoint_is_away(oidc: Connection, endpoint: Endpoint) -> None:
    """It is asked for early, so that an outage of the endpoint need not be one of the run."""
    settings = oidc.settings()
    oauth.token(settings, lambda: 0.0)
    endpoint.answer = (503, b"")
    assert oauth.token(settings, lambda: 99.9).text == "t-1"
    with pytest.raises(Retriable, match="HTTP 503"):
        oauth.token(settings, lambda: 100.0)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", "HTTP 429"),
        (b"\x15\x03\x01 no HTTP\r\n\r\n", "BadStatusLine"),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"access', "IncompleteRead"),
    ],
)
def test_an_endpoint_that_limits_requests_or_breaks_off_is_asked_again(tmp_path: Path, raw: bytes, said: str) -> None:
    """A rate limit ended a run that still had a token; the others ended it with a stack trace of Python's HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):
                client, _ = server.accept()
                with client:
                    client.recv(100_000)
                    client.sendall(raw)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(100_000):  # the rest of the request: to close before it is read would reset
                        pass

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/token"
        settings = connection(tmp_path, OIDC.format(url=url)).settings()
        with pytest.raises(Retriable, match=f"no token for client enricher from {url}: .*{said}"):
            oauth.token(settings)
        oauth._kept[url, "enricher", "kafka", "None"] = oauth.Token("t-1", 80.0, 100.0)
        assert oauth.token(settings, lambda: 90.0).text == "t-1"
        thread.join()


@pytest.mark.parametrize("answer", [(401, b"{}"), (200, b"not JSON"), (200, b"{}"), (200, b"[]")])
def test_an_endpoint_without_a_token_is_named(oidc: Connection, endpoint: Endpoint, answer: tuple[int, bytes]) -> None:
    endpoint.answer = answer
    with pytest.raises(Denied, match=f"no token for client enricher from {endpoint.url}: ") as caught:
        oauth.token(oidc.settings())
    assert "sesame" not in str(caught.value)


def test_the_same_in_javas_words(tmp_path: Path) -> None:
    """Tokens by Kafka's own handler; quotes in a secret stay what they are."""
    text = OIDC.format(url="https://login/token")
    properties = java_settings(connection(tmp_path, text))
    assert properties["sasl.mechanism"] == "OAUTHBEARER"
    assert properties["sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert properties["sasl.login.callback.handler.class"].endswith(".oauthbearer.OAuthBearerLoginCallbackHandler")
    assert properties["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="enricher" clientSecret="sesame\\"s" scope="kafka" extension_cluster="lkc-1" extension_pool="p";'
    )
    kerberos = java_settings(connection(tmp_path, KERBEROS))
    assert kerberos["sasl.jaas.config"] == (
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true" storeKey="true" '
        'keyTab="/etc/enricher.keytab" principal="enricher/host@EXAMPLE.COM";'
    )
    assert (kerberos["sasl.mechanism"], kerberos["sasl.kerberos.service.name"]) == ("GSSAPI", "kafka")
    ticket = "\n".join(line for line in KERBEROS.splitlines() if "keytab" not in line and "principal" not in line)
    assert 'useTicketCache="true"' in java_settings(connection(tmp_path, ticket))["sasl.jaas.config"]
    assert java_settings(connection(tmp_path, AWS)) | {"sasl.jaas.config": ""} == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": "",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


def test_aws_signs_where_its_package_is_and_says_so_where_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = connection(tmp_path, AWS).settings()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(Refused, match="pip install aws-msk-iam-sasl-signer-python"):
        oauth.token(settings)
    signer = SimpleNamespace(generate_auth_token=lambda region: (f"signed for {region}", 900_000))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", SimpleNamespace(MSKAuthTokenProvider=signer))
    assert oauth.token(settings, lambda: 0.0) == ("signed for eu-west-1", 720.0, 900.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OIDC.format(url="http://login/token"), r":8: .*token\.endpoint\.url=\*\*\* is refused: .*https://"),
        (KERBEROS.replace("@EXAMPLE", ";rm -rf"), r":4: .*principal=\*\*\* is refused: "),
        (KERBEROS.replace("/etc/", "$(id)"), r":5: .*keytab=\*\*\* is refused: "),
        (AWS.replace("eu-west-1", "x.evil/"), r":4: .*region=\*\*\* is refused: "),
        (AWS.replace("sasl.oauthbearer.aws.region=eu-west-1\n", ""), r"needs sasl\.oauthbearer\.aws\.region, too"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n", r"needs sasl\.oauthbearer\.method, too"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n", r"needs sasl\.kerberos\.service\.name, too"),
        (KERBEROS.replace("sasl.kerberos.keytab=/etc/enricher.keytab\n", ""), r"needs sasl\.kerberos\.keytab, too"),
    ],
)
def test_what_is_missing_or_would_reach_a_shell_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """Librdkafka hands a principal and a keytab to `kinit`, in a shell."""
    with pytest.raises(UsageError, match=expected):
        connection(tmp_path, text)


def test_advice_names_whose_login_it_is(tmp_path: Path) -> None:
    """The brokers alone know the principal that a token stands for."""
    users = [connection(tmp_path, text).user for text in (OIDC.format(url="https://l/t"), KERBEROS, AWS)]
    assert users == [
        "the principal of client enricher",
        "the principal of enricher/host@EXAMPLE.COM",
        "the AWS identity of this process",
    ]
    assert sasl.owner({sasl.SERVICE: "kafka"}) == "the owner of this process's Kerberos ticket"
