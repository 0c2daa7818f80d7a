"""
Mutation testing of what decides: `make mutation [MODULE=area or module]`.

mutmut changes one operator, constant, argument or branch at a time and runs the tests that call the function.
tests/mutation/areas.toml says what it changes and which tests count, explained.toml which survivors are accepted.
Each area runs in a copy of the sources, `.mutation/<area>`; properties are methods there, since mutmut skips them.
Scores go to docs/proof/mutation.json and mutation.md.

Exit codes: 0 each module reaches the bar and each survivor is explained, 1 not so, 3 the tests themselves fail.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/mutation/areas.toml"
EXPLAINED = ROOT / "tests/mutation/explained.toml"
RESULTS = ROOT / "docs/proof/mutation.json"
PAGE = ROOT / "docs/proof/mutation.md"
WORK = ROOT / ".mutation"
BAR = 90.0
MUTATE = "--mutate"
"""The first argument of the process that runs mutmut, in an area's folder."""
SEEN = {"killed", "timeout", "segfault"}
NO_MUTANTS_IN = [r"^\s*_?log(ger)?\.", r"__slots__", r"^type \w+ ="]
PROPERTY = re.compile(r"^    @property\n    def (\w+)\((?:.*\n)(?:(?:     .*)?\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Area:
    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    leave: tuple[str, ...] = ()
    """Classes and functions that are not mutated; the table gives the reason."""

    def files(self) -> list[str]:
        """Return the test files that match the patterns now."""
        return sorted({str(file.relative_to(ROOT)) for pattern in self.tests for file in ROOT.glob(pattern)})

    @classmethod
    def all(cls, table: Path = TABLE) -> list[Self]:
        areas = tomllib.loads(table.read_text(encoding="utf-8"))
        return [cls(name, **{key: tuple(value) for key, value in of.items()}) for name, of in areas.items()]


@dataclass(frozen=True)
class Explained:
    """An accepted survivor; `now` is the changed line, with `*` where it changes in several ways."""

    module: str
    function: str
    now: str
    why: str

    @classmethod
    def all(cls, file: Path = EXPLAINED) -> list[Self]:
        return [cls(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])]

    def covers(self, mutant: dict[str, Any]) -> bool:
        if (self.module, self.function) != (mutant["module"], mutant["function"]):
            return False
        return self.now == mutant["now"] or fnmatch(mutant["now"], self.now.replace("[", "[[]"))


def unfolded(source: str) -> str:
    """Turn each property into a method and an assignment, which mutmut mutates; leave protocol stubs alone."""

    def as_method(found: re.Match[str]) -> str:
        text = found[0].rstrip("\n")
        if text.endswith("..."):
            return found[0]
        method = text.removeprefix("    @property\n")
        return f"{method}\n\n    {found[1]} = property({found[1]})\n\n"

    return PROPERTY.sub(as_method, source)


def excluded(source: str, names: Iterable[str]) -> str:
    """Add comments around the named classes and functions that make mutmut skip them."""
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            lines.insert(node.end_lineno or 0, "# pragma: no mutate end")
            lines.insert(node.lineno - 1, "# pragma: no mutate start")
    return "\n".join(lines) + "\n"


def prepare(area: Area, *, again: bool) -> Path:
    """Return a copy of sources and tests with mutmut's settings for this area; ``again`` keeps the last verdicts."""
    work = WORK / area.name
    if work.exists() and not again:
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = [pattern.removesuffix("*") for pattern in settings["tool"]["setuptools"]["packages"]["find"]["include"]]
    leave = shutil.ignore_patterns("__pycache__", "*.pyc", ".hypothesis")
    beside = ["scripts", "docs", "deploy", "models", "benchmarks"]
    for folder in [*packages, "tests", *beside]:
        shutil.copytree(ROOT / folder, work / folder, ignore=leave, dirs_exist_ok=True)
    files = [file.name for file in ROOT.iterdir() if file.is_file()]  # a few tests read the Makefile or a page
    for name in files:
        shutil.copy(ROOT / name, work / name)
    for module in area.modules:
        source = (work / module).read_text(encoding="utf-8")
        (work / module).write_text(excluded(unfolded(source), area.leave), encoding="utf-8")
    values = {
        "source_paths": packages,
        "only_mutate": list(area.modules),
        "also_copy": [*beside, *files],
        "do_not_mutate_patterns": NO_MUTANTS_IN,
        "pytest_add_cli_args": ["--hypothesis-profile=mutation", "--durations=0", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": area.files(),
        "use_git_change_detection": False,
    }
    section = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (work / "pyproject.toml").write_text(f"{text}\n[tool.mutmut]\n{section}", encoding="utf-8")
    return work


def run(area: Area, only: list[str], workers: int, log: Path, *, again: bool) -> list[dict[str, Any]]:
    work = prepare(area, again=again)
    part = only != list(area.modules) and not again  # mutmut discards the verdicts of modules named on its command line
    names = [f"{module.removesuffix('.py').replace('/', '.')}.*" for module in only if part]
    with log.open("w", encoding="utf-8") as out:
        command = [sys.executable, __file__, MUTATE, str(workers), *names]
        done = subprocess.run(command, cwd=work, stdout=out, stderr=subprocess.STDOUT, check=False)
    results = work / "results.json"
    if done.returncode or not results.exists():
        tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        print(
            f"{tail}\nmutation: {area.name}: mutmut exited with {done.returncode}; its full output is in {log}",
            file=sys.stderr,
        )
        raise SystemExit(3)
    mutants: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8"))
    return [mutant for mutant in mutants if mutant["module"] in only]


def mutate(workers: int, names: list[str]) -> None:
    """
    Run mutmut on the area in the current directory and write `results.json`, with the lines of survivors; in a process
    of its own. String literals with a space are messages, and not mutated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import libcst as cst  # noqa: PLC0415 - mutmut and what it brings, for this process only
        from mutmut import __main__ as mutmut  # noqa: PLC0415 - as above
        from mutmut.mutation import mutators  # noqa: PLC0415 - as above
        from mutmut.stats import status_by_exit_code  # noqa: PLC0415 - as above
        from mutmut.utils.file_utils import walk_mutatable_files  # noqa: PLC0415 - as above

    def no_sentences(node: cst.BaseString) -> Iterator[cst.BaseString]:
        if not (isinstance(node, cst.SimpleString) and " " in node.value):
            yield from mutators.operator_string(node)

    # pytest collects garbage several times at exit, and each mutant would traverse everything its parent has imported.
    os.register_at_fork(before=gc.freeze)
    operators = mutators.mutation_operators
    at = next(i for i, (_, operator) in enumerate(operators) if operator is mutators.operator_string)
    operators[at] = (cst.BaseString, no_sentences)  # type: ignore[index]
    if (calls := Path("mutants/mutmut-stats.json")).exists():  # left by an earlier run: `--again`
        calls.unlink()  # so that the map of tests to functions is rebuilt
        mutmut._reset_mutant_results(lambda _, code: status_by_exit_code[code] not in SEEN)  # noqa: SLF001 - as below
    mutmut._run(tuple(names), workers)  # noqa: SLF001 - its command line, without losing the operators
    rows = [row for path in walk_mutatable_files() for row in _results(path)]
    Path("results.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _results(survivors_of: Path) -> Iterator[dict[str, Any]]:
    from mutmut.mutation import diff_apply  # noqa: PLC0415 - as above
    from mutmut.mutation.data import SourceFileMutationData  # noqa: PLC0415 - as above
    from mutmut.stats import status_by_exit_code  # noqa: PLC0415 - as above

    data = SourceFileMutationData(path=survivors_of)
    data.load()
    for name, exit_code in data.exit_code_by_key.items():
        status = status_by_exit_code[exit_code]
        row = {"name": name, "module": str(survivors_of), "function": _function(name), "status": status}
        if status not in SEEN:
            diff = diff_apply.get_diff_for_mutant(name, path=survivors_of)
            row |= {"was": _changed(diff, "-"), "now": _changed(diff, "+")}
        yield row


def _function(name: str) -> str:
    """Return `Class.method` or `function` from mutmut's name `module.xǁClassǁmethod__mutmut_7`."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return mangled.removeprefix("x_") if mangled.startswith("x_") else ".".join(mangled.split("ǁ")[1:])


def _changed(diff: str, sign: str) -> str:
    lines = (line[1:].strip() for line in diff.splitlines() if line[:1] == sign and line[:3] != sign * 3)
    return " ".join(line for line in lines if line)


def score(module: str, mutants: Iterable[dict[str, Any]], explained: list[Explained]) -> dict[str, Any]:
    """Return one module's row: mutants, mutants detected, and survivors with the reason why each is accepted."""
    mine = [mutant for mutant in mutants if mutant["module"] == module and mutant["status"] != "skipped"]
    survivors = []
    for mutant in (mutant for mutant in mine if mutant["status"] not in SEEN):
        why = next((entry.why for entry in explained if entry.covers(mutant)), None)
        survivors.append({key: mutant[key] for key in ("function", "was", "now", "status")} | {"why": why})
    killed = len(mine) - len(survivors)
    return {
        "mutants": len(mine),
        "killed": killed,
        "timeout": sum(mutant["status"] == "timeout" for mutant in mine),
        "explained": sum(survivor["why"] is not None for survivor in survivors),
        "unexplained": sum(survivor["why"] is None for survivor in survivors),
        "score": round(100 * killed / len(mine), 1) if mine else 100.0,
        "survivors": survivors,
    }


def stale(module: str, mutants: list[dict[str, Any]], explained: list[Explained]) -> list[Explained]:
    alive = [mutant for mutant in mutants if mutant["status"] not in SEEN]
    mine = [entry for entry in explained if entry.module == module]
    return [entry for entry in mine if not any(map(entry.covers, alive))]


def commit() -> str:
    def git(*words: str) -> str:
        command = [shutil.which("git") or "git", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if dirty else "")


def page(results: dict[str, Any]) -> str:
    """Return docs/proof/mutation.md: a row per module, then the survivors and the reason why each is accepted."""
    rows = results["modules"]
    total = sum(row["mutants"] for row in rows.values())
    killed = sum(row["killed"] for row in rows.values())
    lines = [
        "# Mutation scores",
        "",
        "`make mutation` writes this page: one change at a time to what decides, and the unit tests have to notice.",
        "How and why: [decision 0014](../decisions/0014-mutation-testing.md).",
        "",
        f"{killed:,} of {total:,} mutants killed ({100 * killed / max(total, 1):.1f} %).",
        f"The bar: {BAR:.0f} % in every module, and every survivor explained.",
        "",
        "| module | mutants | killed | explained | unexplained | score | commit | date |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    lines += [
        f"| `{module}` | {row['mutants']} | {row['killed']} | {row['explained']} | {row['unexplained']}"
        f" | {row['score']:.1f} % | {row['commit']} | {row['date']} |"
        for module, row in rows.items()
    ]
    if missing := results["not_measured"]:
        lines += ["", f"Not measured yet: {', '.join(f'`{module}`' for module in missing)}."]
    lines += ["", f"Versions: {results['versions']}.", "", "## Survivors", ""]
    for module, row in rows.items():
        lines += [
            f"- `{module}`, `{survivor['function']}`: `{survivor['now'] or 'removed: ' + survivor['was']}`: "
            f"{survivor['why'] or '**unexplained**'}"
            for survivor in row["survivors"]
        ]
    return "\n".join(lines) + "\n"


def store(rows: dict[str, dict[str, Any]], order: list[str]) -> None:
    """Store the measured rows in the committed results; other modules keep theirs."""
    merged = (json.loads(RESULTS.read_text(encoding="utf-8"))["modules"] if RESULTS.exists() else {}) | rows
    results = {
        "command": "make mutation",
        "versions": f"Python {sys.version.split()[0]}, mutmut {version('mutmut')}, pytest {version('pytest')}, "
        f"hypothesis {version('hypothesis')}",
        "modules": {module: merged[module] for module in order if module in merged},
        "not_measured": [module for module in order if module not in merged],
    }
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


def print_score(module: str, row: dict[str, Any], unused: list[Explained]) -> bool:
    """Print a module's score and survivors; return whether it passes."""
    print(
        f"{module:42} {row['killed']:4} of {row['mutants']:4} killed  {row['score']:5.1f} %"
        f"  {row['explained']} explained, {row['unexplained']} unexplained"
    )
    for survivor in row["survivors"]:
        if survivor["why"] is None:
            print(f"    {survivor['status']}: {survivor['function']}")
            print(f"      - {survivor['was']}\n      + {survivor['now']}")
    for entry in unused:
        print(f"    explained, but no longer a survivor: {entry.function}: {entry.now}")
    return bool(row["unexplained"] == 0 and row["score"] >= BAR)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="*", help="areas or modules of tests/mutation/areas.toml (default: all)")
    parser.add_argument("--workers", type=int, default=1, help="number of mutants tested at a time (default: 1)")
    parser.add_argument(
        "--again", action="store_true", help="test only mutants that the last run did not kill or did not reach"
    )
    parser.add_argument("--no-store", action="store_true", help="print only, do not write docs/proof/mutation.*")
    options = parser.parse_args(arguments)
    areas, explained = Area.all(), Explained.all()
    known = {name for area in areas for name in (area.name, *area.modules)}
    if unknown := set(options.module) - known:
        has, wrong = ", ".join(sorted(known)), ", ".join(sorted(unknown))
        print(f"mutation: {wrong} is not in {TABLE.relative_to(ROOT)}; it lists {has}", file=sys.stderr)
        return 64
    passed = True
    for area in areas:
        only = [module for module in area.modules if not options.module or {module, area.name} & set(options.module)]
        if not only:
            continue
        WORK.mkdir(exist_ok=True)
        stamp = {"commit": commit(), "date": datetime.now(UTC).date().isoformat()}
        mutants = run(area, only, options.workers, WORK / f"{area.name}.log", again=options.again)
        rows = {module: score(module, mutants, explained) | stamp for module in only}
        for module, row in rows.items():
            passed &= print_score(module, row, stale(module, mutants, explained))
        if not options.no_store:
            store(rows, [module for area in areas for module in area.modules])
    return 0 if passed else 1


if __name__ == "__main__":
    if sys.argv[1:2] == [MUTATE]:
        mutate(int(sys.argv[2]), sys.argv[3:])
    else:
        raise SystemExit(main())
