"""Finding a transformation by its name, and what a typo is told."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from brew.errors import UsageError
from brew.load import load
from brew.record import Record, apply
from brew.spark.shipping import pickled

HERE = Path(__file__).parents[1]
SOURCE = """
import re
_WORD = re.compile("o+")
def shout(record):
    return record.with_value(_WORD.sub(_longer, record.value.decode()).encode())
def _longer(match):
    return match[0] * 2
"""


def test_a_function_is_found_in_a_module_and_in_a_file_and_loaded_once() -> None:
    """Twice would run the module's top level twice."""
    by_module, by_file = load("clicks_example:add_domain"), load(f"{HERE}/clicks_example.py:add_domain")
    assert by_module.target is by_file.target is load("clicks_example:add_domain").target
    assert by_module.name == "clicks_example:add_domain"
    assert load(load).target is load, "a function itself is taken as it is"
    assert load(lambda record: record).name.endswith("<lambda>")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("clicks_exmple:add_domain", "there is no module 'clicks_exmple' in .*; did you mean 'clicks_example'"),
        ("clicks_example:add_domian", "clicks_example has no 'add_domian'; did you mean 'add_domain'"),
        (f"{HERE}/clicks_exampel.py:f", "there is no file .*clicks_exampel.py; did you mean 'clicks_example.py'"),
        ("clicks_example", "write module:function or file.py:function"),
        (":add_domain", "write module:function"),
        ("clicks_example:A_NUMBER", "that is int, a function is needed"),
        ("clicks_example:two_arguments", "can't be called with one argument, the record: missing a required"),
        ("clicks_example:asynchronous", "is an async function; write it with def"),
        ("/no/such/folder/f.py:f", "there is no file /no/such/folder/f.py"),
    ],
)
def test_a_typo_is_refused_with_what_was_looked_for_and_the_nearest_name(named: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        load(named)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        *((source, r"\w+Error: ") for source in ("import no_such_thing_at_all", "1 / 0", "def f(:")),
        ("class E(Exception):\n    __str__ = None\nraise E", r"E: \(no text: its __str__ raised TypeError\)"),
        *((f"import sys\nsys.exit({code})", f"SystemExit: {code}; put what a script does") for code in ("", "0", "1")),
    ],
)
def test_a_module_that_fails_or_exits_at_import_is_refused_with_why(tmp_path: Path, source: str, reason: str) -> None:
    """Not as one that is missing: that would send people looking in the wrong place. A script's 0 is no success."""
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(UsageError, match=rf"importing .*broken\.py failed: {reason}"):
        load(f"{tmp_path}/broken.py:f")


def test_a_file_called_like_a_loaded_module_is_loaded_all_the_same(tmp_path: Path) -> None:
    import json  # noqa: PLC0415 - it must stay what it is

    (tmp_path / "json.py").write_text("def f(record):\n    return record\n")
    assert load(f"{tmp_path}/json.py:f").target.__module__ == "brew_transform_json"
    assert sys.modules["json"] is json


_EXECUTOR = """
import pickle, sys
from brew.record import Record
function = pickle.loads(sys.stdin.buffer.read())
print(function(Record(value=b"moo")).value)
"""


def _elsewhere(payload: bytes, cwd: Path) -> str:
    """In a process that knows neither our folders nor the tests', as an executor."""
    line = [sys.executable, "-c", _EXECUTOR]
    done = subprocess.run(line, input=payload, capture_output=True, cwd=cwd, timeout=60, check=False)
    return (done.stdout or done.stderr).decode()


def test_a_file_and_a_closure_travel_by_value_with_all_that_they_use(tmp_path: Path) -> None:
    """Executors have no such file."""
    (tmp_path / "shouting.py").write_text(SOURCE)
    payload = pickled(load(f"{tmp_path}/shouting.py:shout").target)
    (tmp_path / "shouting.py").unlink()
    assert _elsewhere(payload, tmp_path).strip() == "b'moooo'"
    suffix = b"!"
    assert pickle.loads(pickled(lambda record: record.with_value(suffix)))(Record()).value == b"!"


@pytest.mark.parametrize(("name", "answer"), [("plain", "b'1'"), ("decorated", "Reject: not-json")])
def test_a_partial_travels_like_the_function_in_it(tmp_path: Path, name: str, answer: str) -> None:
    """Python says that both are of the module `functools`, which executors have."""
    (tmp_path / "parts.py").write_text(
        "import functools\nfrom brew import formats\n"
        "def put(value, record):\n    return record.with_value(value)\n"
        "plain = functools.partial(put, b'1')\n"
        "def same(number, value):\n    return number\n"
        "decorated = formats.json()(functools.partial(same, 1))\n"
    )
    payload = pickled(load(f"{tmp_path}/parts.py:{name}").target)
    (tmp_path / "parts.py").unlink()
    assert answer in _elsewhere(payload, tmp_path)


def test_what_is_in_a_wheel_travels_by_name_and_the_wheel_with_it(tmp_path: Path) -> None:
    """By value it would be sent twice."""
    wheel = tmp_path / "shouting_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("in_a_wheel.py", SOURCE)
    loaded = load("in_a_wheel:shout", (str(wheel),))
    assert apply(loaded.target, Record(value=b"o")) == (Record(value=b"oo"),)
    assert b"in_a_wheel" in (payload := pickled(loaded.target))
    assert "No module named 'in_a_wheel'" in _elsewhere(payload, tmp_path)
    with pytest.raises(UsageError, match=r"--py-files is '/no/wheel\.whl'"):
        load("in_a_wheel:other", ("/no/wheel.whl",))


def test_a_function_with_a_cache_travels_like_one_without(tmp_path: Path) -> None:
    """What is costly is made in the first call, by a cached function; cloudpickle would send it by name."""
    (tmp_path / "cached.py").write_text(
        "import functools\n@functools.cache\ndef half(n):\n    return n if n < 2 else half(n // 2)\n"
        "@functools.lru_cache(7)\ndef f(record):\n    return record.with_value(b'%d' % half(8))\n"
    )
    payload = pickled(load(f"{tmp_path}/cached.py:f").target)
    (tmp_path / "cached.py").unlink()
    assert _elsewhere(payload, tmp_path).strip() == "b'1'"


def test_two_runs_of_one_package_may_start_at_once(tmp_path: Path) -> None:
    """The first one that had sent its function would make the other send its own by name."""
    (tmp_path / "paired.py").write_text("def f(record):\n    return record\ndef g(record):\n    return record\n")
    first, second = (load(f"{tmp_path}/paired.py:{name}").target for name in "fg")
    with ThreadPoolExecutor(1) as other:

        class Meanwhile:
            def __reduce__(self) -> Any:
                wait([other.submit(pickled, second)], 0.3)
                return int, ()

        first.slow = Meanwhile()  # type: ignore[attr-defined]
        payload = pickled(first)
    (tmp_path / "paired.py").unlink()
    assert _elsewhere(payload, tmp_path).strip() == "b'moo'"


def test_what_can_not_travel_is_refused_with_the_way_out(tmp_path: Path) -> None:
    source = "import threading\nL = threading.Lock()\ndef f(record):\n    return L and record\n"
    (tmp_path / "locked.py").write_text(source)
    with pytest.raises(UsageError, match=r"locked:f can't be sent to Spark's tasks .*lock.*at its first call"):
        pickled(load(f"{tmp_path}/locked.py:f").target)
    assert b"locked" in pickled(load(f"{tmp_path}/locked.py:f").target, [f"{tmp_path}/locked.py"])
