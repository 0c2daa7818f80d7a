"""HTML from templates, next to the code that fills them: Jinja escapes texts and shows invisible characters."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

__all__ = ["Markup", "document", "templates", "visible"]

# Invisible, or changes the text around it: other, control, format, surrogate, private use, unassigned; separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>\
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{{ hash(style) }}'; \
script-src '{{ hash(script) }}'; base-uri 'none'; form-action 'none'"/>\
<meta name="viewport" content="width=device-width, initial-scale=1"/><meta name="color-scheme" content="light dark"/>\
<title>{{ title }}</title><style>{{ style }}</style></head><body>{{ body }}<script>{{ script }}</script></body></html>
"""


def visible(text: str) -> str:
    """Return the text with invisible characters replaced by their codes, except for line ends and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else c.encode("unicode_escape").decode()
        for c in text
    )


def templates(package: str, *, lines: bool = False, **names: Any) -> Environment:
    """Return the package's templates, each with ``names``, without line breaks and indentation unless ``lines``."""

    def source(name: str) -> str:
        text = files(package).joinpath(name).read_text("utf-8")
        return text if lines else re.sub(r"\n\s*", "", text)

    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        finalize=_finalize,
        keep_trailing_newline=lines,
    )
    environment.globals.update(names)
    return environment


def _finalize(value: object) -> object:
    if value is None or isinstance(value, Markup):
        return value or ""
    return visible(str(value))


def document(title: str, style: Markup, script: Markup, body: Markup) -> str:
    """Return a whole page. It loads nothing and runs only its own script; the page's own policy enforces both."""
    return _page().render(title=title, style=style, script=script, body=body, hash=_hash)


@cache
def _page() -> Template:
    return Environment(autoescape=True, finalize=_finalize, keep_trailing_newline=True).from_string(_PAGE)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
