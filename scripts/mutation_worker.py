"""
Runs mutmut on the area in the current directory and writes `results.json`; started by `scripts/mutation.py`.

Two additions to mutmut: string literals that hold a space are sentences for people and stay as they are, and survivors
are written out with the lines that they change.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst as cst

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mutmut import __main__ as mutmut
    from mutmut.mutation import diff_apply, mutators
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

SEEN = {"killed", "timeout", "segfault"}


def _no_sentences(node: cst.BaseString) -> Iterator[cst.BaseString]:
    if not (isinstance(node, cst.SimpleString) and " " in node.value):
        yield from mutators.operator_string(node)


def _function(name: str) -> str:
    """`Class.method` or `function` of mutmut's name `module.xǁClassǁmethod__mutmut_7`."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return mangled.removeprefix("x_") if mangled.startswith("x_") else ".".join(mangled.split("ǁ")[1:])


def _changed(diff: str, sign: str) -> str:
    lines = (line[1:].strip() for line in diff.splitlines() if line[:1] == sign and line[:3] != sign * 3)
    return " ".join(line for line in lines if line)


def _results(survivors_of: Path) -> Iterator[dict[str, Any]]:
    data = SourceFileMutationData(path=survivors_of)
    data.load()
    for name, exit_code in data.exit_code_by_key.items():
        status = status_by_exit_code[exit_code]
        row = {"name": name, "module": str(survivors_of), "function": _function(name), "status": status}
        if status not in SEEN:
            diff = diff_apply.get_diff_for_mutant(name, path=survivors_of)
            row |= {"was": _changed(diff, "-"), "now": _changed(diff, "+")}
        yield row


def main() -> None:
    # pytest collects garbage several times as it ends: each mutant would look through all that its parent has imported.
    os.register_at_fork(before=gc.freeze)
    operators = mutators.mutation_operators
    at = next(i for i, (_, operator) in enumerate(operators) if operator is mutators.operator_string)
    operators[at] = (cst.BaseString, _no_sentences)  # type: ignore[index]
    if (calls := Path("mutants/mutmut-stats.json")).exists():  # left by an earlier run: `--again`
        calls.unlink()  # which test calls which function is found out anew
        mutmut._reset_mutant_results(lambda _, code: status_by_exit_code[code] not in SEEN)  # noqa: SLF001 - as below
    mutmut._run(tuple(sys.argv[2:]), int(sys.argv[1]))  # noqa: SLF001 - its command line, without losing the operators
    rows = [row for path in walk_mutatable_files() for row in _results(path)]
    Path("results.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
