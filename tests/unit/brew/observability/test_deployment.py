"""Manifests, dashboard and alerts hold what the programs answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml
from harness.pages import ROOT, tables
from harness.recorded import stored_names

from brew.__main__ import cli as brew_cli
from brew.observability.counters import Ending
from brew.observability.metrics import METRICS
from brew.observability.settings import PORT, probe_options
from brew.observability.status import PartitionState
from downstream.ledger.command import ledger_command
from pipeline.__main__ import run_command

DEPLOY, RUNBOOKS = ROOT / "deploy", ROOT / "docs/runbooks"
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
SCRAPED = {"job", "instance"}
"""Labels that Prometheus itself puts on every series."""
VALUES = {
    "state": {one.value for one in PartitionState},
    "outcome": {one.value for one in Ending},
    "phase": {"fence", "locate", "begin", "produce", "send-offsets", "commit"},
    "application": {"pipeline", "sink", *(f"downstream {name}" for name in ("ledger", "receive", "call", "totals"))},
}
RULE_GROUPS = yaml.safe_load((DEPLOY / "alerts/brew.rules.yaml").read_text())["groups"]
RULES = [rule for group in RULE_GROUPS for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana/brew.json").read_text())


def queries() -> Iterator[tuple[str, str]]:
    """(where, expression) of all alerts and panels; Grafana's variables as what they stand for."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$job", ".+")
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], note["expr"].replace("$job", ".+")


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """All series that an expression asks for."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    else:
        inner = [getattr(node, name) for name in ("expr", "lhs", "rhs") if hasattr(node, name)]
        for one in [*inner, *getattr(node, "args", ())]:
            yield from selectors(one)


def wrong_in(expression: str) -> list[str]:
    """What an expression asks for that no program tells."""
    known = stored_names() | dict.fromkeys(PROCESS, ())
    asked_for = list(selectors(promql_parser.parse(expression)))
    wrong = [] if asked_for else ["it asks for nothing"]
    labels: set[str] = set()
    for one in asked_for:
        if one.name not in known:
            wrong.append(f"no metric {one.name}")
            continue
        labels |= {*known[one.name], *SCRAPED}
        for matcher in one.matchers.matchers:
            if matcher.name not in {*known[one.name], *SCRAPED}:
                wrong.append(f"{one.name} has no label {matcher.name}")
            named = set(matcher.value.split("|")) if matcher.name in VALUES else set()
            wrong += [f"{matcher.name} is never {value}" for value in sorted(named - VALUES.get(matcher.name, named))]
    grouped = re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression)
    for label in {word.strip() for words in grouped for word in words.split(",")} - labels:
        wrong.append(f"nothing to group by {label}")
    return wrong


@pytest.mark.parametrize(("where", "expression"), list(queries()))
def test_every_query_parses_and_asks_for_what_is_told(where: str, expression: str) -> None:
    assert wrong_in(expression) == [], where


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("brew_lag > 0", ["no metric brew_lag"]),
        ('brew_txn_total{result="committed"}', ["brew_txn_total has no label result"]),
        ('brew_txn_total{outcome="comitted"}', ["outcome is never comitted"]),
        ("sum by (topic) (brew_fenced_total)", ["nothing to group by topic"]),
        ("sum(rate(brew_txn_seconds[5m]))", ["no metric brew_txn_seconds"]),
        ("vector(1)", ["it asks for nothing"]),
    ],
)
def test_a_query_that_asks_for_something_else_or_has_no_form_is_caught(expression: str, wrong: list[str]) -> None:
    assert wrong_in(expression) == wrong
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        wrong_in("sum by (job (brew_live)")


def test_the_page_of_operations_lists_every_metric_and_every_option() -> None:
    operations = (ROOT / "docs/OPERATIONS.md").read_text()
    described = {f"{name}_info" if name == "brew" else name: one.labels for name, one in METRICS.items()}
    listed = {row[0]: tuple(re.findall(r"\w+", row[1])) for row in tables(operations, "Metrics")[0]}
    assert listed == described
    options = [row[0] for row in tables(operations, "Probes and metrics")[1]]
    assert sorted(options) == sorted(one.opts[0] for one in probe_options(click.Command("x")).params)


# Alerts and their pages.


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    """Who is woken up finds what to do; when alerts fire, Prometheus itself says: `test_prometheus.py`."""
    alerts = [rule["alert"] for rule in RULES]
    assert sorted(alerts) == sorted({*alerts})
    assert sorted(alerts) == sorted(page.stem for page in RUNBOOKS.glob("*.md"))
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"
        assert rule["labels"]["severity"] in {"critical", "warning"}
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= set(re.findall(r"\w+", rule["expr"])), rule["alert"]


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_it_means_how_to_look_and_what_to_do(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["What it means", "How to look", "What to do"]
    commands = re.findall(r"^brew (\w+)", text, re.MULTILINE)
    assert commands
    assert sorted({*commands} - {*brew_cli.list_commands(click.Context(brew_cli))}) == []


# The dashboard.


def test_the_dashboard_has_a_place_for_each_panel() -> None:
    taken: set[tuple[int, int]] = set()
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        grid = panel["gridPos"]
        right, bottom = grid["x"] + grid["w"], grid["y"] + grid["h"]
        cells = {(x, y) for x in range(grid["x"], right) for y in range(grid["y"], bottom)}
        assert right <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"]


def test_groups_that_read_the_same_topic_are_not_added_up() -> None:
    """As ledger and totals do with the output; what open transactions hold back is the same for all of them."""
    mixed = [
        (where, expression.partition(" ")[0])
        for where, expression in queries()
        for labels in re.findall(r"by \(([^)]*)\)", expression)
        if "partition" in labels and "job" not in labels
    ]
    assert mixed == [("Behind open transactions", "max")]


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    shown = {one.name for _, expression in queries() for one in selectors(promql_parser.parse(expression))}
    stored, used = ({re.sub(r"_(bucket|sum|count)$", "", name) for name in names} for names in (stored_names(), shown))
    assert stored - used == {"brew_started", "brew_consumer_position"}


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


def spark_application() -> dict[str, Any]:
    (document,) = [one.values[0] for one in MANIFESTS if one.values[0]["kind"] == "SparkApplication"]
    spec: dict[str, Any] = document["spec"]
    return spec


def pods_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """The pod template in a manifest."""
    spec = document.get("spec", {})
    template: dict[str, Any] | None = spec.get("driver", {}).get("template") or spec.get("template")
    return template


PODS = [one for one in MANIFESTS if pods_of(one.values[0])]


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
    folder, _, file = spark_application()["mainApplicationFile"].partition("/site-packages/")
    assert file
    assert (ROOT / file).is_file()
    text = (ROOT / "deploy/kubernetes/spark-application.yaml").read_text()
    assert f"FROM {folder.rpartition('/')[2].replace('python', 'python:')}-slim" in text, "the image's own Python"


def test_a_manifest_with_a_wrong_field_is_caught() -> None:
    """A misspelt name, and a number where the operator takes text."""
    for wrong in ({"sparkversion": "4.2.0"}, {"sparkVersion": 4.2}, {"mode": "local"}, {"driver": {"cores": "1"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**spark_application(), **wrong}, SPARK_APPLICATION)
    document = next(one.values[0] for one in MANIFESTS if one.values[0]["kind"] == "Deployment")
    broken = json.loads(json.dumps(document))
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGett"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


@pytest.mark.parametrize("document", PODS)
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
    settings = yaml.safe_load((DEPLOY / "kubernetes/settings.yaml").read_text())["data"]
    assert (settings["PROBE_HOST"], settings["PROBE_PORT"]) == ("0.0.0.0", str(PORT))
    assert set(settings) <= {one.envvar for one in run_command.params}, "a name that no program reads sets nothing"


@pytest.mark.parametrize("document", PODS)
def test_each_command_line_is_one_that_the_program_takes(document: dict[str, Any]) -> None:
    spec = document["spec"]
    container = spec["template"]["spec"]["containers"][0] if "template" in spec else {}
    verb, *words = spec.get("arguments") or container["args"]
    command = {"run": run_command, "ledger": ledger_command}[verb]
    context = command.make_context(verb, [re.sub(r"\$\((\w+)\)", r"\1", word) for word in words])
    assert context.params["follow"] is True
