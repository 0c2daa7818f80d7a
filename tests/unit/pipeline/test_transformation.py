"""The seam between the library and its applications."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from harness.pages import ROOT

from brew.connection import Connection
from brew.errors import UsageError
from brew.settings import Limits, PipelineSettings, ProfilesSettings
from brew.transformation import transformation
from pipeline.transformation import ORDERS, OrderEnrichment

SETTINGS = PipelineSettings(
    Connection("nowhere:1"), "in", "out", "dead", "group", limits=Limits(max_bytes=70), transform=ORDERS
)


def test_orders_are_a_transformation_with_the_limits_of_the_run() -> None:
    orders = transformation(SETTINGS)
    assert orders == OrderEnrichment(Limits(max_bytes=70))
    assert pickle.loads(pickle.dumps(orders)) == orders
    assert orders.whole_input_first is False
    assert transformation(replace(SETTINGS, profiles=ProfilesSettings())).whole_input_first is True
    prepared = orders.ready(SETTINGS.connection, "group", 1)  # the connection leads nowhere
    assert (prepared.evidence, prepared.malformed) == (None, None)
    assert prepared.transform is None, "orders take the way without a Record: functions cost them nothing"
    assert b'"loyalty_tier":"gold"' in bytes(prepared.enrich(b"gold-1", b'{"customer_id":"c"}'))


@pytest.mark.parametrize(
    "named", ["no_such_module:name", "pipeline.transformation:Nothing", "pipeline.transformation", ""]
)
def test_a_transformation_that_is_not_there_is_refused_by_its_name(named: str) -> None:
    """Before Spark starts: the settings are enough to know."""
    with pytest.raises(UsageError, match=r"TRANSFORM \(--transform\) is") as refused:
        transformation(replace(SETTINGS, transform=named))
    assert repr(named) in str(refused.value)


def test_the_library_imports_no_application() -> None:
    """The lint contract sees the imports that stand in the text; this sees what is loaded."""
    code = (
        "import sys, brew.attempt, brew.driver.run, brew.readers.direct.worker, brew.driver.micro_batches; "
        "print(sorted({n.partition('.')[0] for n in sys.modules} & {'pipeline', 'operations', 'downstream', 'proof'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
