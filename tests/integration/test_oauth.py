"""
Logins by token against a real broker: it checks signatures with the public key of the test's own token endpoint.

All four client libraries log in: librdkafka (a run), kafka-python (`doctor`, `lag`), aiokafka (tasks of a sink), and
Spark's Java consumer.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from harness.pipeline import environment

from brew.client_config import load
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.arrow_batches import Records, encoded
from brew.kafka.shared_transaction import SharedTransaction
from brew.kafka.shared_writer import Written, write
from brew.kafka.transaction import TransactionSettings
from brew.names import GROUP_ID, OUTPUT_TOPIC
from brew.offsets import Committed
from brew.transaction import Write, transact
from sandbox.kafka import Cluster, Settings
from sandbox.secure import Security

_SECRET = "sesame"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Endpoint:
    """Gives each client that knows the secret a token for ten minutes, with its own name as the owner's."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.token_owners: list[str] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                pair = base64.b64decode(self.headers["Authorization"].partition(" ")[2]).decode()
                client, _, secret = (urllib.parse.unquote(part) for part in pair.partition(":"))
                accepted = secret == _SECRET
                body = {"access_token": endpoint.token(client), "token_type": "Bearer", "expires_in": 600}
                self.send_response(200 if accepted else 401)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body if accepted else {"error": "invalid_client"}).encode())
                if accepted:
                    endpoint.token_owners.append(client)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"

    def token(self, client: str) -> str:
        now = int(time.time())
        head = {"alg": "RS256", "typ": "JWT", "kid": "k1"}
        body = {"sub": client, "aud": "kafka", "iss": "test", "iat": now - 5, "exp": now + 600, "scope": "kafka"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, body))
        return f"{signed}.{_encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def key_set(self) -> str:
        """The public key, as brokers read it (RFC 7517)."""
        numbers = self._key.public_key().public_numbers()
        parts = {
            name: _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))
            for name, value in (("n", numbers.n), ("e", numbers.e))
        }
        return json.dumps({"keys": [{"kty": "RSA", "kid": "k1", "alg": "RS256", "use": "sig", **parts}]})


@dataclass
class TokenBroker:
    """A secure broker that takes tokens, and a folder for clients' files."""

    cluster: Cluster
    endpoint: Endpoint
    folder: Path

    def config(self, client: str, secret: str = _SECRET) -> Path:
        file = self.folder / f"{client}-{secret}.properties"
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.method=oidc\n"
            f"sasl.oauthbearer.client.id={client}\nsasl.oauthbearer.client.secret={secret}\n"
            f"sasl.oauthbearer.token.endpoint.url={self.endpoint.url}\n"
            f"ssl.ca.location={Security.of(self.cluster.layout).folder / 'ca.pem'}\n"
        )
        file.chmod(0o600)
        return file

    def call(self, client: str, *module_and_arguments: str, secret: str = _SECRET) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *module_and_arguments, "--bootstrap", self.cluster.bootstrap]
        command += ["--client-config", str(self.config(client, secret))]
        variables = environment("oauth")
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=180)

    def succeeds(self, client: str, *words: str) -> str:
        done = self.call(client, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def token_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    folder, endpoint = tmp_path_factory.mktemp("oauth"), Endpoint()
    keys = folder / "keys.json"
    keys.write_text(endpoint.key_set())
    listener = "listener.name.secure"
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        f"{listener}.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    thread = threading.Thread(target=endpoint.server.serve_forever, args=[0.02])
    thread.start()
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
    try:
        settings = Settings(secure=True, properties=properties)
        with Cluster.start(folder / "cluster", brokers=1, settings=settings) as cluster:
            if before is None:
                del os.environ["JAVA_TOOL_OPTIONS"]
            else:
                os.environ["JAVA_TOOL_OPTIONS"] = before
            token_broker = TokenBroker(cluster, endpoint, folder)
            token_broker.succeeds("admin", "proof", "topics")
            yield token_broker
    finally:
        endpoint.server.shutdown()
        thread.join()
        endpoint.server.server_close()


@pytest.mark.parametrize("reader", [("--master", "none"), ("--master", "local[2]", "--reader", "connector")])
def test_a_run_logs_in_by_token_and_the_operators_tools_do(token_broker: TokenBroker, reader: tuple[str, ...]) -> None:
    """The broker sees the token's owner: rights are those of the user `pipeline`."""
    token_broker.succeeds("admin", "proof", "seed", "--count", "50")
    before = len(token_broker.endpoint.token_owners)
    assert "50 records: 50 enriched" in token_broker.succeeds("pipeline", "pipeline", "run", *reader)
    tokens = len(token_broker.endpoint.token_owners) - before
    assert tokens <= 8, "one for a process, not one for each client"
    if "connector" in reader:
        return  # the tools below ask the same of a topic that either reader has drained
    assert json.loads(token_broker.succeeds("operator", "pipeline", "lag", "--json"))["remaining"] == 0
    assert "no hanging or lingering" in token_broker.succeeds("operator", "pipeline", "doctor")
    token_broker.succeeds("proof-reader", "proof", "verify")


def test_a_wrong_secret_is_told_with_the_endpoint_and_without_the_secret(token_broker: TokenBroker) -> None:
    """Soon, and as a refusal."""
    done = token_broker.call("pipeline", "pipeline", "run", "--master", "none", secret="wrong-secret")
    assert done.returncode == 3, done.stderr
    assert f"no token for client pipeline from {token_broker.endpoint.url}: HTTP 401" in done.stderr
    assert "wrong-secret" not in done.stderr.replace("pipeline-wrong-secret.properties", "")


def test_an_owner_without_rights_is_told_whose_they_are(token_broker: TokenBroker) -> None:
    done = token_broker.call("nobody", "pipeline", "run", "--master", "none")
    assert done.returncode == 3, done.stderr
    assert "client nobody" in done.stderr


def test_the_tasks_of_a_sink_log_in_by_token(token_broker: TokenBroker) -> None:
    """The driver through kafka-python, tasks through aiokafka; the last test, since `verify` would see the record."""
    config = load(token_broker.config("pipeline"))
    connection = Connection(token_broker.cluster.bootstrap, config.properties, config.secrets, config.source)
    kafka = SharedTransaction(TransactionSettings(connection, GROUP_ID, 20.0), OUTPUT_TOPIC)
    written = []

    def produce(_deadline: Deadline) -> None:
        rows = Records(pa.array([b"value"]), pa.array([b"key"]), None, np.zeros(1, np.int64), [(OUTPUT_TOPIC, 0)])
        written.append(write(kafka.epoch, iter([encoded(rows, [], 1000)])))

    assert transact(kafka, lambda _: Write(produce, lambda: 1, "", Deadline(30)), Deadline(30))
    assert written == [Written(1, {(OUTPUT_TOPIC, 0)})]
    assert kafka.locate(Deadline(10)) == Committed(1, "")
    kafka.invalidate()
