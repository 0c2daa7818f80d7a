"""The image in a container, restricted as the manifests do it, with its broker on the same bridge network."""

from __future__ import annotations

import shutil
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.containers import SECRET_USER, Container, KafkaContainer, Network, version
from harness.pipeline import READERS, ROOT, Stage, until
from harness.servers import Broker

from brew.observability import settings as probes

IMAGE = f"brew:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
USER = 10001
Make = Callable[..., Container]
Record = Callable[[str, object], None]


@pytest.fixture
def brew(bridge: Network) -> Iterator[Make]:
    """Make containers of the image: no root, no capability, a read-only root with a /tmp of its own."""
    made: list[Container] = []

    def make(*words: str, **settings: object) -> Container:
        limits = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
        container = Container(IMAGE, **limits, **settings)
        container.with_command(list(words)).with_network(bridge).with_tmpfs_mount("/tmp", "size=256m")
        container.publish(probes.PORT)
        made.append(container)
        return container

    yield make
    for container in made:
        container.stop()


def run_words(stage: Stage, kafka: KafkaContainer, *more: str) -> list[str]:
    """`run` on this stage's topics, as a container of the network reaches the broker."""
    words = Stage(Broker(kafka.inside), stage.names).options()
    return ["run", *words, *more]


def ended(container: Container) -> tuple[int, str]:
    code = container.wait()
    return code, container.text()


@pytest.mark.parametrize("options", [("none", "direct"), *(("local[2]", reader) for reader in READERS)])
def test_it_drains_a_backlog(
    stage: Stage, kafka: KafkaContainer, brew: Make, record_property: Record, options: tuple[str, str]
) -> None:
    """With and without Spark, by both readers; the exit code is the run's own, and the logs prove it from outside."""
    master, reader = options
    stage.create(orders=300)
    began = time.monotonic()
    container = brew(*run_words(stage, kafka, "--master", master, "--reader", reader)).start()
    code, text = ended(container)
    record_property("drain_300_s", round(time.monotonic() - began, 1))
    assert code == 0, text
    stage.proven(inputs=300, outputs=300)


def _get(container: Container, path: str) -> tuple[int, str]:
    """From this machine, through the mapped port; 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{container.published[probes.PORT]}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


@pytest.mark.parametrize("master", ["none", "local[2]"])
def test_it_follows_is_probed_from_outside_and_ends_on_sigterm(
    stage: Stage, kafka: KafkaContainer, brew: Make, record_property: Record, master: str
) -> None:
    """Ready by its own word, healthy by the image's health check, a user that can write nowhere; SIGTERM: code 0."""
    stage.create(output=4)
    began = time.monotonic()
    container = brew(*run_words(stage, kafka, "--master", master, "--follow")).start()
    until(lambda: _get(container, "/readyz")[0] == 200, "the run's readiness", 90)
    record_property("ready_s", round(time.monotonic() - began, 1))
    assert [_get(container, path)[0] for path in ("/startupz", "/livez")] == [200, 200]
    assert "brew_" in _get(container, "/metrics")[1]

    details = container.get_wrapped_container().attrs["Config"]["Healthcheck"]["Test"]
    assert container.exec(details[1:]).exit_code == 0
    assert container.exec(["id", "-u"]).output.decode().strip() == str(USER)
    refused = container.exec(["touch", "/home/brew/file"])
    assert (refused.exit_code != 0, "Read-only file system" in refused.output.decode()) == (True, True)

    stage.seed(500)
    until(lambda: stage.outputs() == 500, "500 orders", 60)
    stopped = time.monotonic()
    code = container.end()
    record_property("sigterm_s", round(time.monotonic() - stopped, 1))
    assert code == 0, container.text()
    assert time.monotonic() - stopped < 10
    stage.proven(inputs=500, outputs=500)


def test_a_container_that_is_killed_does_the_rest_when_it_comes_back(
    stage: Stage, kafka: KafkaContainer, brew: Make
) -> None:
    """SIGKILL between two transactions or in one; the same container, started again, makes the output exact."""
    stage.create(output=4, orders=3000)
    words = run_words(stage, kafka, "--master", "none", "--max-records-per-transaction", "20")
    container = brew(*words).start()
    until(lambda: 0 < stage.outputs() < 3000, "the first transactions", 60)
    container.kill()
    assert container.wait() != 0
    assert stage.outputs() < 3000
    container.again()
    code, text = ended(container)
    assert code == 0, text
    stage.proven(inputs=3000, outputs=3000)


def _secrets(folder: Path, kafka: KafkaContainer, password: str) -> Path:
    """What a Secret would be mounted as: files that only the image's user may read."""
    folder.mkdir()
    shutil.copyfile(kafka.authority, folder / "ca.pem")
    (folder / "password").write_text(password)
    (folder / "client.properties").write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.ca.location=ca.pem\n"
        f"sasl.username={SECRET_USER}\nsasl.password=${{file:password}}\n"
    )
    for file in [folder, *folder.iterdir()]:
        shutil.chown(file, USER, USER)
        file.chmod(0o700 if file.is_dir() else 0o400)
    return folder


@pytest.mark.parametrize("known", [True, False], ids=["its password", "another password"])
def test_secrets_come_from_a_mounted_file(
    stage: Stage, kafka: KafkaContainer, brew: Make, tmp_path: Path, *, known: bool
) -> None:
    """TLS and a password that stand on no command line and in no variable; with another password nothing is written."""
    stage.create(output=4, orders=100)
    password = kafka.password if known else "guessed"
    folder = _secrets(tmp_path / "secret", kafka, password)
    broker = Stage(Broker(kafka.secret), stage.names)
    config = ("--client-config", "/run/brew/client.properties", "--patience", "20")
    container = brew("run", *broker.options(), "--master", "none", *config)
    container.with_volume_mapping(folder, "/run/brew", "ro").start()
    code, text = ended(container)
    assert password not in text
    assert str(container.get_wrapped_container().attrs).find(password) == -1
    if known:
        assert code == 0, text
        stage.proven(inputs=100, outputs=100)
    else:
        assert code == 3, text
        assert stage.outputs() == 0


def test_it_is_the_version_that_it_is_tagged_with(brew: Make, record_property: Record) -> None:
    """Its size, and the time in which it answers at all."""
    began = time.monotonic()
    container = brew("--version").start()
    code, text = ended(container)
    record_property("version_s", round(time.monotonic() - began, 1))
    assert (code, text.split()[-1]) == (0, version(IMAGE))
    record_property("image_mb", container.get_wrapped_container().image.attrs["Size"] // 1_000_000)
