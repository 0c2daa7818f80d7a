"""Kubernetes manifests against Kubernetes' schemas, the operator's types, and the programs' own options."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from harness.pages import ROOT

from brew.observability.settings import PORT
from downstream.ledger.command import ledger_command
from pipeline.__main__ import run_command

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.31"
MANIFESTS = [
    pytest.param(document, id=f"{file.name}-{document['kind']}")
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]


def _only(required: Sequence[str] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


TEXT, NUMBER, LIST, MAP = {"type": "string"}, {"type": "integer", "minimum": 1}, {"type": "array"}, {"type": "object"}
_POD = {
    **dict.fromkeys(("memory", "memoryOverhead", "serviceAccount"), TEXT),
    **dict.fromkeys(("cores", "terminationGracePeriodSeconds"), NUMBER),
    "annotations": MAP,
    "env": LIST,
    "envFrom": LIST,
    "template": MAP,
}
# What we use of it.
SPARK_APPLICATION = _only(
    ("type", "sparkVersion", "mainApplicationFile", "driver", "executor"),
    type={"enum": ["Java", "Python", "Scala", "R"]},
    pythonVersion={"enum": ["2", "3"]},
    mode={"enum": ["cluster", "client"]},
    sparkVersion=TEXT,
    image=TEXT,
    mainApplicationFile=TEXT,
    arguments={"type": "array", "items": TEXT},
    restartPolicy=_only(type={"enum": ["Never", "Always", "OnFailure"]}),
    driver=_only(**_POD),
    executor=_only(instances=NUMBER, **_POD),
)


def pods_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """The pod template in a manifest."""
    spec = document.get("spec", {})
    found: dict[str, Any] | None = spec.get("driver", {}).get("template") or spec.get("template")
    return found


@pytest.mark.parametrize("document", MANIFESTS)
def test_manifests_hold_their_schemas(document: dict[str, Any]) -> None:
    """
    Strictly: a field that Kubernetes does not know is a mistake.

    The operator's own schema is in no package registry that can be asked from here: of a SparkApplication the pod
    template is checked as Kubernetes takes it (the operator's schema leaves it open), and the rest against names, kinds
    and bounds as in the operator's types (kubeflow/spark-operator 07f3cec, api/v1beta2/sparkapplication_types.go).
    """
    if document["kind"] != "SparkApplication":
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "driver"}}
    kubernetes_validate.validate({**template, "template": pods_of(document)}, KUBERNETES, strict=True)
    spec = document["spec"]
    assert document["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    jsonschema.validate(spec, SPARK_APPLICATION)


def test_the_file_that_the_operator_runs_is_in_the_wheel() -> None:
    """It has to name a module of ours, below the folder that pip installs to."""
    (document,) = [one.values[0] for one in MANIFESTS if one.values[0]["kind"] == "SparkApplication"]
    file = document["spec"]["mainApplicationFile"].partition("-packages/")[2]
    assert file
    assert (ROOT / file).is_file()


def test_a_spark_application_with_a_wrong_field_is_caught() -> None:
    """A misspelt name, and a number where the operator takes text."""
    (document,) = [one.values[0] for one in MANIFESTS if one.values[0]["kind"] == "SparkApplication"]
    for wrong in ({"sparkversion": "4.2.0"}, {"sparkVersion": 4.2}, {"mode": "local"}, {"driver": {"cores": "1"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document["spec"], **wrong}, SPARK_APPLICATION)


def test_a_manifest_with_a_wrong_field_is_caught() -> None:
    """The validator validates."""
    document = next(one.values[0] for one in MANIFESTS if one.values[0]["kind"] == "Deployment")
    broken = json.loads(json.dumps(document))
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGett"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


@pytest.mark.parametrize("document", [one for one in MANIFESTS if pods_of(one.values[0])])
def test_each_pod_is_probed_where_the_program_answers(document: dict[str, Any]) -> None:
    """Paths, port and address, and a start that is given its time before liveness counts."""
    template = pods_of(document)
    assert template is not None
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    assert port == {"name": "probes", "containerPort": PORT}
    paths = {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "probes"}
    told = yaml.safe_load((DEPLOY / "kubernetes/settings.yaml").read_text())["data"]
    assert (told["PROBE_HOST"], told["PROBE_PORT"]) == ("0.0.0.0", str(PORT))


@pytest.mark.parametrize("document", [one for one in MANIFESTS if pods_of(one.values[0])])
def test_each_command_line_is_one_that_the_program_takes(document: dict[str, Any]) -> None:
    """Read by the program's own options; `$(NAME)` is what Kubernetes puts in."""
    spec = document["spec"]
    container = spec["template"]["spec"]["containers"][0] if "template" in spec else {}
    verb, *words = spec.get("arguments") or container["args"]
    command = {"run": run_command, "ledger": ledger_command}[verb]
    context = command.make_context(verb, [re.sub(r"\$\((\w+)\)", r"\1", word) for word in words])
    assert context.params["follow"] is True


def test_environment_names_are_those_of_the_options() -> None:
    """A name that no program reads sets nothing."""
    told = yaml.safe_load((DEPLOY / "kubernetes/settings.yaml").read_text())["data"]
    read = {one.envvar for one in run_command.params}
    assert set(told) <= read
