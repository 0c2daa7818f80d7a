"""
`pipeline.yaml` and `ledger.yaml` of `deploy/kubernetes`, played by Podman: pods with probes, config and secret.

Podman 4.3 knows no Service, no node and no PodDisruptionBudget, publishes a container's port on this machine, and asks
probes with a `curl` that the image does not have. So each replica is a Deployment of its own with a port of its own,
and the test asks the probes that the manifest names, as a kubelet does.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from harness.containers import SECRET_USER, KafkaContainer, Network
from harness.pipeline import ROOT, Stage, until

from sandbox.process import free
from sandbox.store import Postgres

FOLDER = ROOT / "deploy/kubernetes"
CLIENT = f"""security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
ssl.ca.location=ca.pem
sasl.username={SECRET_USER}
sasl.password=${{env:KAFKA_PASSWORD}}
"""


def podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Pod:
    """One replica: where its probes answer, and the container in it."""

    name: str
    port: int
    probes: dict[str, str]
    container: str

    def probe_status(self, probe: str) -> int:
        """The probe of that name; 0 while nobody answers."""
        try:
            with urlopen(f"http://localhost:{self.port}{self.probes[probe]}", timeout=5) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except OSError:
            return 0

    def process(self) -> int:
        """Its first process as this machine numbers it; 0 while it does not run."""
        return int(podman("inspect", self.container, "--format", "{{.State.Pid}}"))


def manifest(file: str, name: str, port: int, more: dict[str, Any]) -> tuple[dict[str, Any], Pod]:
    """The file's Deployment with one replica of that name; what differs from it is here and where it is played."""
    documents = yaml.safe_load_all((FOLDER / file).read_text())
    deployment = copy.deepcopy(next(document for document in documents if document["kind"] == "Deployment"))
    deployment["metadata"]["name"] = name
    deployment["spec"]["replicas"] = 1
    spec = deployment["spec"]["template"]["spec"]
    container = spec["containers"][0]
    container["ports"] = [{"name": "probes", "containerPort": port}]
    container["env"] += more["env"] + [{"name": "PROBE_PORT", "value": str(port)}]
    container["volumeMounts"] += more["mounts"]
    spec["volumes"] = [{"name": f"{name}-tmp", "emptyDir": {}}, *more["volumes"]]
    container["volumeMounts"][0]["name"] = f"{name}-tmp"
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    paths = {kind: container[kind]["httpGet"]["path"] for kind in kinds}
    return deployment, Pod(name, port, paths, f"{name}-pod-0-{container['name']}")


def keep(secret: str, key: str, value: str, folder: Path) -> None:
    """A Secret with one key."""
    (folder / "secret").write_text(json.dumps({key: base64.b64encode(value.encode()).decode()}))
    podman("secret", "create", secret, str(folder / "secret"))


@pytest.fixture
def pods(stage: Stage, kafka: KafkaContainer, bridge: Network, tmp_path: Path) -> Iterator[list[Pod]]:
    """Two replicas on the bridge network, who they are to the broker from a ConfigMap and a Secret; down at the end."""
    assert shutil.which("podman"), "no podman here; install it with `scripts/setup-packages.sh containers`"
    stage.create(output=4)
    suffix = uuid.uuid4().hex[:8]
    settings = yaml.safe_load((FOLDER / "settings.yaml").read_text())
    names = stage.names
    settings["data"] |= {"BOOTSTRAP": kafka.secret, "INPUT_TOPIC": names.input, "OUTPUT_TOPIC": names.output}
    settings["data"] |= {"DLQ_TOPIC": names.dead_letter, "BREW_CLIENT_CONFIG": "/etc/brew/client.properties"}
    del settings["data"]["PROBE_PORT"]  # one for each pod
    files = {"client.properties": CLIENT, "ca.pem": kafka.authority.read_text()}
    client = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"client-{suffix}"}, "data": files}
    secret = f"brew-{suffix}"
    keep(secret, "password", kafka.password, tmp_path)
    reference = {"name": secret, "key": "password"}
    more = {
        "env": [
            {"name": "KAFKA_PASSWORD", "valueFrom": {"secretKeyRef": reference}},
            {"name": "GROUP_ID", "value": names.group},
        ],
        "mounts": [{"name": "client", "mountPath": "/etc/brew"}],
        "volumes": [{"name": "client", "configMap": {"name": f"client-{suffix}", "optional": False}}],
    }
    pods, file = [], tmp_path / "pods.yaml"
    documents = [settings, client]
    for number, port in enumerate(free(2)):
        deployment, pod = manifest("pipeline.yaml", f"brew-{suffix}-{number}", port, more)
        documents.append(deployment)
        pods.append(pod)
    file.write_text(yaml.safe_dump_all(documents))
    try:
        podman("kube", "play", "--network", str(bridge.name), str(file))
        yield pods
    finally:
        podman("kube", "down", str(file))
        podman("secret", "rm", secret)


def test_a_pod_that_is_killed_comes_back_and_the_output_is_exact(pods: list[Pod], stage: Stage) -> None:
    """Started, alive and ready by the manifest's probes; SIGKILL to one of the two while both work; all is proven."""
    for pod in pods:
        for probe in pod.probes:
            until(lambda pod=pod, probe=probe: pod.probe_status(probe) == 200, f"{probe} of {pod.name}", 120)
    stage.seed(2000)
    until(lambda: stage.outputs() > 0, "the first orders", 60)
    victim = pods[0]
    first = victim.process()
    os.kill(first, signal.SIGKILL)
    until(lambda: victim.process() not in {0, first}, "the pod's return", 60)
    stage.seed(500, "--seed", "7")
    until(lambda: stage.outputs() == 2500, "all orders", 120)
    until(lambda: victim.probe_status("readinessProbe") == 200, "the pod's readiness", 60)
    assert int(podman("inspect", victim.container, "--format", "{{.RestartCount}}")) >= 1
    for pod in pods:
        assert podman("exec", pod.container, "id", "-u") == "10001"
        podman("stop", "--time", "30", pod.container)
        assert podman("inspect", pod.container, "--format", "{{.State.ExitCode}}") == "0"
    stage.proven(inputs=2500, outputs=2500)


@pytest.fixture
def ledger(stage: Stage, kafka: KafkaContainer, postgres: Postgres, tmp_path: Path) -> Iterator[Pod]:
    """A replica of the ledger on this machine's own network: the database listens on the loopback device only."""
    settings = yaml.safe_load((FOLDER / "settings.yaml").read_text())
    settings["data"] |= {"BOOTSTRAP": kafka.bootstrap, "OUTPUT_TOPIC": stage.names.output}
    del settings["data"]["PROBE_PORT"]
    name, (port,), file = f"brew-{uuid.uuid4().hex[:8]}", free(1), tmp_path / "pods.yaml"
    deployment, pod = manifest("ledger.yaml", name, port, {"env": [], "mounts": [], "volumes": []})
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    del container["ports"]  # Podman maps none on this network
    # What kubelet puts in for a variable: Podman 4.3 does not.
    container["args"] = [word.replace("$(OUTPUT_TOPIC)", stage.names.output) for word in container["args"]]
    file.write_text(yaml.safe_dump_all([settings, deployment]))
    keep("brew-ledger", "DATABASE_URL", postgres.url, tmp_path)
    try:
        podman("kube", "play", "--network", "host", str(file))
        yield pod
    finally:
        podman("secret", "rm", "brew-ledger")
        podman("kube", "down", str(file))


def test_the_ledgers_pod_books_every_order(stage: Stage, postgres: Postgres, request: pytest.FixtureRequest) -> None:
    """Its secret says where the database is; `ledger --check` compares rows and money with the topic, to the cent."""
    stage.create(output=4, orders=500)
    stage.drain_locally()
    pod: Pod = request.getfixturevalue("ledger")
    for probe in pod.probes:
        until(lambda probe=probe: pod.probe_status(probe) == 200, probe, 60)
    check = ["downstream", "ledger", "--check", "--bootstrap", stage.broker.bootstrap, "--topic", stage.names.output]

    def booked() -> bool:
        with stage.python(*check, "--database", postgres.url) as program:
            return program.wait(60).code == 0

    until(booked, "all orders in the ledger", 60)
    podman("stop", "--time", "30", pod.container)
    assert podman("inspect", pod.container, "--format", "{{.State.ExitCode}}") == "0"
