"""`brew.Pipeline` before anything runs: what it refuses, and what its settings are."""

from __future__ import annotations

from typing import Any

import pytest

import brew
from brew.errors import UsageError
from brew.settings import OnError, Reader


def made(**more: Any) -> brew.Pipeline:
    return brew.Pipeline(**{"input": "a", "output": "b", "transform": lambda record: record, **more})


def test_its_settings_are_those_of_the_command_line() -> None:
    settings = made(
        also_output=["c"], on_error="dead-letter", reader="connector", master="none", max_records_per_transaction=7
    ).settings
    assert (settings.outputs, settings.dead_letter, settings.group) == (("b", "c"), "b.dlq", "brew-b")
    assert (settings.on_error, settings.reader, settings.spark.absent) == (OnError.DEAD_LETTER, Reader.CONNECTOR, True)
    assert (settings.max_records_per_transaction, settings.follow) == (7, False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_record_per_transaction": 7}, "no setting 'max_record_per_transaction'; did you mean 'max_records_per"),
        ({"follow": True}, "no setting 'follow'"),
        ({"reader": "conector"}, "reader is 'conector'; it is one of connector, direct"),
        ({"transform": "clicks_example:add_domian"}, "did you mean 'add_domain'"),
        ({"output": "a"}, "they have to be three topics"),
        ({"also_output": ["b"]}, "names b, which is another topic of the run, or named twice"),
        ({"also_output": ["c", "c"]}, "names c, which is another topic of the run, or named twice"),
        ({"also_output": ["c d"]}, "--also-output"),
        ({"transform": None}, "no transformation is given"),
    ],
)
def test_what_can_not_be_is_refused_when_it_is_made(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(**more)
