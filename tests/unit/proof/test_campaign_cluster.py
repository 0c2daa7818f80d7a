"""The campaign's own brokers: what is healed after which fault, and what a cluster lacks for a cell."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from brew.deadline import Deadline
from brew.errors import KafkaFailure, Refused
from proof.campaign import cluster
from proof.campaign.cell import Need
from proof.campaign.cluster import CLIENTS, ExternalCluster, Sandbox

NODES = [
    {"broker": n, "process": 100 + n, "running": True, "network": "namespaces", "data_size_mb": 512 * (n == 3)}
    for n in (1, 2, 3)
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Commands of the sandbox, signals, and what the brokers answer: all three are there, and all replicas in sync."""
    calls = Mock(brokers=Mock(return_value=[1, 2, 3]), out_of_sync=Mock(return_value=[]))
    monkeypatch.setattr(cluster.cluster_admin, "brokers", calls.brokers)
    monkeypatch.setattr(cluster.cluster_admin, "out_of_sync", calls.out_of_sync)
    monkeypatch.setattr(cluster.os, "kill", calls.kill)
    monkeypatch.setattr(cluster, "_POLL_S", 0.0)
    return calls


@pytest.fixture
def sandbox(calls: Mock, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    made: Any = Sandbox.__new__(Sandbox)
    ExternalCluster.__init__(made, "nowhere:1")
    made._touched, made._nodes = False, NODES
    monkeypatch.setattr(made, "run", calls.run)
    monkeypatch.setattr(made, "status", lambda: {"brokers": NODES})
    topics = dict.fromkeys(("in", "__consumer_offsets", "another"))
    vars(made)["admin"] = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics=topics))
    return made


def commands(calls: Mock) -> list[str]:
    return [" ".join(call.args) for call in calls.run.mock_calls]


@pytest.mark.parametrize(
    "fault",
    [
        lambda sandbox: sandbox.kill(1),
        lambda sandbox: sandbox.pause(1),
        lambda sandbox: sandbox.restart(1),
        lambda sandbox: sandbox.cut(1, 2, CLIENTS),
        lambda sandbox: sandbox.fill(3),
    ],
    ids=["kill", "pause", "restart", "cut", "fill"],
)
def test_after_every_fault_all_is_healed_once(
    sandbox: Sandbox, calls: Mock, fault: Callable[[Sandbox], object]
) -> None:
    """A broker that is still cut off or stopped would spoil the next cell."""
    fault(sandbox)
    calls.reset_mock()
    sandbox.restore(Deadline(5), ["in"])
    continued = [call.args for call in calls.kill.mock_calls]
    assert (commands(calls), continued) == (["heal"], [(100 + n, signal.SIGCONT) for n in (1, 2, 3)])
    calls.reset_mock()
    sandbox.restore(Deadline(5), ["in"])
    assert (commands(calls), calls.kill.mock_calls) == ([], []), "nothing was broken since"


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_cluster_is_whole_once_all_brokers_answer_and_all_replicas_are_in_sync(
    sandbox: Sandbox, calls: Mock, monkeypatch: pytest.MonkeyPatch, by_itself: bool
) -> None:
    """Also one that failed without a fault. Internal topics count, those of other cells do not."""
    down = [{**NODES[0], "running": False, "process": None}, *NODES[1:]]
    monkeypatch.setattr(sandbox, "status", lambda: {"brokers": down})
    if not by_itself:
        sandbox.cut(2, 3)
        calls.reset_mock()
    calls.brokers.side_effect = [[2, 3], KafkaFailure("away"), [1, 2, 3], [1, 2, 3]]
    calls.out_of_sync.side_effect = [["in[0]"], []]
    sandbox.restore(Deadline(5), ["in", "out"])
    assert commands(calls) == ["heal", "restart 1"]
    assert (calls.brokers.call_count, calls.out_of_sync.call_count) == (4, 2)
    assert calls.out_of_sync.call_args.args[1] == {"in", "__consumer_offsets"}


def test_signals_reach_the_brokers_that_run_and_no_others(
    sandbox: Sandbox, calls: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.kill(1, 3)
    assert [call.args for call in calls.kill.mock_calls] == [(101, signal.SIGKILL), (103, signal.SIGKILL)]
    monkeypatch.setattr(sandbox, "status", lambda: {"brokers": [{**NODES[0], "process": None}]})
    with pytest.raises(Refused, match="broker 1 is not running"):
        sandbox.pause(1)
    sandbox.cut(1, 2, CLIENTS)
    assert commands(calls) == ["cut 1 --from 2 --from clients"]


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ([], set()),
        ([{"data_size_mb": 0}], {Need.DISK}),
        ([{"network": "loopback"}], {Need.NETWORKS}),
        ([{"data_size_mb": 0, "network": "loopback"}], {Need.DISK, Need.NETWORKS}),
    ],
)
def test_a_cell_is_told_what_its_cluster_lacks(
    sandbox: Sandbox, change: list[dict[str, object]], lacks: set[Need]
) -> None:
    """Of brokers that are not ours, nothing may be broken."""
    changed: dict[str, object] = change[0] if change else {}
    sandbox._nodes = [*NODES[:2], {**NODES[2], **changed}]
    assert {need for need in Need if sandbox.lacks(need)} == lacks
    sandbox._nodes = NODES[2:]
    assert {need for need in Need if sandbox.lacks(need)} == {Need.THREE}
    external = ExternalCluster("nowhere:1")
    assert {need for need in Need if not external.lacks(need)} == {Need.SPARK, Need.PROXY}


def test_only_a_secure_cluster_has_users(sandbox: Sandbox) -> None:
    sandbox._secure = None
    assert sandbox.environment == {}
    with pytest.raises(Refused, match="has no users"):
        sandbox.client_config("pipeline")
    sandbox._secure = {"client_configs": {"admin": "/a", "pipeline": "/p"}}
    assert sandbox.client_config("pipeline") == Path("/p")
    assert sandbox.environment == {"BREW_CLIENT_CONFIG": "/a"}
