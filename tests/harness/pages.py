"""Parts of a documentation page: tables, links, file names, targets; pure, so that its failures can be tested."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("brew", "pipeline", "operations", "downstream", "proof", "sandbox")
MADE_LATER = (".venv/", ".jvm/", ".sandbox/", "build/", "dist/", "brew.toml")

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(r"\.?[\w-][\w.-]*(/[\w.-]+)*/?")
_SUFFIXES = {".md", ".py", ".sh", ".xml", ".toml", ".yml", ".txt", ".svg", ".awk", ".json", ".jsa"}
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S+/)?(?:python3? -m (?P<module>\w+)|brew-(?P<script>\w+)|(?P<brew>brew))(?: |$)"
)

Rows = list[list[str]]


def tables(text: str, heading: str) -> list[Rows]:
    """Return the tables below a heading, up to the next heading; cells without backticks, header rows left out."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"no heading {heading!r}"
    rows = []
    for block in re.findall(r"(?:^\|.*\n)+", section[1], re.MULTILINE):
        _, rule, *lines = block.splitlines()
        assert set(rule) <= set("|- :"), rule
        rows.append([[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines])
    return rows


def column(text: str, heading: str, at: int = 0, table: int = 0) -> list[str]:
    return [row[at] for row in tables(text, heading)[table]]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def dead_links(text: str, folder: Path) -> list[str]:
    """Return the broken relative links of a page in ``folder``."""

    def leads_somewhere(link: str) -> bool:
        path, _, anchor = link.partition("#")
        target = folder / path
        if not target.exists():
            return False
        return not anchor or anchor in anchors(target.read_text() if path else text)

    relative = [link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    return [link for link in relative if not leads_somewhere(link)]


def missing_files(text: str, folder: Path) -> list[str]:
    """Return the file names in backticks that exist neither below the root nor beside the page."""
    spans = [span for span in _CODE.findall(_FENCE.sub("", text)) if _PATH.fullmatch(span)]
    named = [span for span in spans if "/" in span or Path(span).suffix in _SUFFIXES]
    gone = [span for span in named if not (ROOT / span).exists() and not (folder / span).exists()]
    # Created by the set-up, and an image's name.
    return [span for span in gone if not span.startswith(MADE_LATER) and span != "apache/kafka"]


def unknown_targets(text: str, makefile: str) -> list[str]:
    """Return the make targets named in code that are missing in the Makefile."""
    known = set(re.findall(r"^([a-z-]+):[^=\n]*## ", makefile, re.MULTILINE))
    code = "\n".join([*_CODE.findall(_FENCE.sub("", text)), *_FENCE.findall(text)])
    calls = re.findall(r"(?:^|[\s`$])make((?: +[a-z][a-z-]+)+)(?=\s|$|,)", code, re.MULTILINE)
    return sorted({target for call in calls for target in call.split()} - known)


def unknown_variables(text: str, makefile: str) -> list[str]:
    """Return the variables passed to make that the Makefile does not read."""
    code = "\n".join([*_CODE.findall(_FENCE.sub("", text)), *_FENCE.findall(text)])
    lines = [line for line in code.splitlines() if re.search(r"\bmake [a-z]", line)]
    given = {name for line in lines for name in re.findall(r"\b([A-Z][A-Z_]+)=", line)}
    return sorted(name for name in given if not re.search(rf"\b{name}\b", makefile))


def unknown_commands(text: str, programs: Mapping[str, click.Group]) -> list[str]:
    """Return commands of our programs, in shell blocks or in backticks, that do not exist or lack an option given."""
    lines = "".join(_SHELL.findall(text)).replace("\\\n", " ").splitlines()
    unknown = []
    for line in [*lines, *_CODE.findall(_FENCE.sub("", text))]:
        call = _CALL.match(line)
        program = call and (call["module"] or call["script"] or call["brew"])
        if call is not None and program in programs:
            words = re.split(r" [#|<>&] ?|\|\|", line[call.end() :])[0].split()
            unknown += _unknown_words(program, programs[program], words)
    return unknown


def _unknown_words(program: str, command: click.Command, words: list[str]) -> list[str]:
    path, context = [program], click.Context(command, **command.context_settings)
    while isinstance(command, click.Group) and words and re.match(r"[a-z]", words[0]):
        path.append(words.pop(0))
        listed = command.get_command(context, path[-1])
        if listed is None:
            return [" ".join(path)]
        command, context = listed, click.Context(listed, parent=context)
    known = {name for parameter in command.get_params(context) for name in parameter.opts + parameter.secondary_opts}
    given = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
    return [] if command.ignore_unknown_options else [" ".join([*path, name]) for name in given if name not in known]


def broken_examples(text: str) -> list[str]:
    """Return Python blocks that do not parse, and names of brew in them that do not exist."""
    broken = []
    for block in _PYTHON.findall(text):
        try:
            nodes = list(ast.walk(ast.parse(block)))
        except SyntaxError as error:
            broken.append(f"{error.msg}: {error.text}")
            continue
        named = [place for node in nodes for place in _names_of_brew(node)]
        broken += [f"{module}.{name}" for module, name in named if not hasattr(importlib.import_module(module), name)]
    return broken


def _names_of_brew(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "brew":
            yield from ((module, one.name) for one in names)
        case ast.Attribute(value=ast.Name(id="brew"), attr=name):
            yield "brew", name


def named_tests(text: str) -> list[str]:
    return re.findall(r"`(test_\w+)`", text)


def machine_paths(text: str) -> list[str]:
    """Return paths that exist on one machine only, and names of package indexes."""
    return re.findall(r"(?<![\w.])/(?:root|home|work|tmp|usr|opt)/\S*|\bpypi\S*|\bmaven\.\S+", text)


def unrounded(text: str) -> list[str]:
    """Return numbers with the many digits of a measuring program, which do not belong on a page except in `code`."""
    return re.findall(r"(?<![`\d])\d+\.\d{9,}", text)
