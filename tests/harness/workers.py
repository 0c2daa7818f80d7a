"""How `make test` hands tests to its workers: one by one, but those that share something costly to one worker."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# The tests of a group run in one worker: its Spark (`harness.pipeline.spark_here`), its databases start once; and each
# `sandbox up` sweeps away the networks that another test leaves behind on purpose.
GROUPS = {
    "spark": (
        "integration/test_pipeline_heals.py",
        "integration/test_pipeline_inputs.py",
        "integration/test_pipeline_refusals.py",
    ),
    "stores": (
        "integration/test_ledger.py",
        "integration/test_receive.py",
        "integration/test_receive_redis.py",
        "scenarios/test_store_kills.py",
    ),
    "secure": ("integration/test_acls.py", "scenarios/test_secure.py", "scenarios/test_secure_canary.py"),
    "sandbox": ("integration/test_sandbox.py", "integration/test_sandbox_faults.py"),
}


class Groups(LoadScopeScheduling):
    """What xdist's own `loadgroup` does by a mark; that one does not see the marks of pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((name for name, files in GROUPS.items() if file.endswith(files)), nodeid)
