"""How `make test` distributes tests: one by one, except that those that share something costly go to one worker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The tests of a group run in one worker: its Spark (`harness.pipeline.shared_spark`), databases and second broker start
# once, its wheel is built once; and each `sandbox up` removes the networks that another test leaves behind on purpose.
GROUPS = {
    "spark": (
        "integration/test_old_kafka.py",
        "integration/test_pipeline_heals.py",
        "integration/test_pipeline_inputs.py",
        "integration/test_pipeline_refusals.py",
        "integration/test_pipeline_vanished.py",
        "integration/test_schema_registry.py",
        "integration/test_transform.py",
        "integration/test_profiles.py::test_spark_workers_hold_the_table_and_keep_it",
    ),
    "stores": (
        "integration/test_durability.py",
        "integration/test_ledger.py",
        "integration/test_receive.py",
        "integration/test_receive_redis.py",
        "scenarios/test_broker_restarts.py",
        "scenarios/test_brokers_away.py",
        "scenarios/test_store_kills.py",
    ),
    "secure": (
        "integration/test_acls.py",
        "integration/test_sink_rights.py",
        "scenarios/test_secure.py",
        "scenarios/test_secure_canary.py",
    ),
    "sandbox": ("integration/test_sandbox.py",),
    "wheel": ("integration/test_wheel.py", "scenarios/test_quick_start.py"),
    "oauth": ("integration/test_oauth.py",),
    "moved": ("scenarios/test_moved_coordinator.py",),
    "sink": (
        "integration/test_sink.py",
        "integration/test_sink_callers.py",
        "integration/test_sink_mutants.py",
        "integration/test_sink_refusals.py",
        "scenarios/test_sink_kills.py",
    ),
}

_MOST_PENDING = 2  # as in xdist


class Groups(LoadScopeScheduling):
    """
    Does by name what xdist's own `loadgroup` does by a mark; that one does not see the marks of pytest 9.2.

    After a worker's crash, xdist 3.8 runs the crashing test again, and waits forever for the last one: a worker starts
    a test only when it knows the next one, or that none follows.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the order is that of `by_turns`; xdist's has the largest groups first

    def remove_node(self, node: Any) -> str | None:
        workload = self.assigned_work.pop(node)
        left = [(scope, test) for scope, unit in workload.items() for test, done in unit.items() if not done]
        if not left:
            return None
        scope, crashed = left[0]
        workload[scope][crashed] = True
        self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def mark_test_pending(self, item: str) -> None:
        """Retry a test that crashed, as pytest-rerunfailures requires."""
        self.workqueue.setdefault(self._split_scope(item), {})[item] = False
        for node in self.assigned_work:
            self._reschedule(node)

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:  # it replaces another worker, and has not reported its tests yet
            return
        # It has no tests yet, and would wait for a second one.
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= _MOST_PENDING:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid) or nodeid


def _group_of(nodeid: str) -> str | None:
    file = nodeid.partition("::")[0]
    return next((name for name, members in GROUPS.items() if nodeid.endswith(members) or file.endswith(members)), None)


_LONG = ("scenarios", "integration")
_LONGEST = "sink"


def by_turns(items: list[pytest.Item], tests: Path) -> None:
    """
    Put the longest group beside all short tests, then the others, then scenarios and integration tests in turns.

    Short tests fail within two minutes. A group that began last would be alone at the end: for 95 seconds, with Spark's
    five minutes. Parallel scenarios alone would starve each other, and the cores would idle while the others wait.
    While three workers ran short tests only, many of which wait, a third of the cores' time was idle (measured).
    """

    def kind(item: pytest.Item) -> str:
        folder = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        return "group" if folder in _LONG and _group_of(item.nodeid) else folder

    members, seen = Counter(map(kind, items)), Counter[str]()

    def place(item: pytest.Item) -> float:
        name = kind(item)
        if name == "group" and _group_of(item.nodeid) == _LONGEST:
            return 0
        seen[name] += 1
        return seen[name] / members[name] + (1 if name == "group" else 2 if name in _LONG else 0)

    items.sort(key=place)
