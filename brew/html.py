"""
HTML by construction: text becomes markup only through `tag` or a template, which both escape it.

A template of `templates` is a file beside the code that fills it; its line breaks and indentation are not part of the
page, so that it can be laid out for reading.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import unicodedata
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Child", "Markup", "document", "escaped", "tag", "templates", "visible"]

_VOID = {"meta", "input", "br", "circle", "line", "path", "rect"}
# A line each, so that two versions of a page can be compared.
_OWN_LINE = {"tr", "section", "details", "summary", "table", "thead", "tbody", "p", "h1", "h2", "h3", "li", "div", "dt"}
# Cannot be seen or turn the text around them: other, control, format, surrogate, private use, unassigned; separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

Child = Markup | str | int | None | Iterable["Child"]


def visible(text: str) -> str:
    """The text with hidden characters spelt out by their codes; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else _spelt(c) for c in text)


def templates(package: str, **names: Any) -> Environment:
    """The package's templates; each sees ``names``. A value that no template was given is an error."""

    def source(name: str) -> str:
        return re.sub(r"\n\s*", "", files(package).joinpath(name).read_text("utf-8"))

    environment = Environment(
        autoescape=True, loader=FunctionLoader(source), undefined=StrictUndefined, finalize=_finalize
    )
    environment.globals.update(names)
    return environment


def _finalize(value: object) -> object:
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _spelt(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def escaped(child: Child) -> Markup:
    """What a child of an element reads as in the page."""
    if isinstance(child, Markup):
        return child
    if child is None:
        return Markup()
    if isinstance(child, (str, int)):
        return Markup(html.escape(visible(str(child))))
    return Markup("".join(map(escaped, child)))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """
    One element; children are escaped unless they are `Markup`.

    Elements without an end tag (`br`, `rect`) get one when they have children, as a `title` in SVG.
    ``class_`` and ``for_`` lose their underscore, others turn into hyphens; None and False leave the attribute out.
    """
    spelt = "".join(_attribute(key, value) for key, value in attributes.items())
    end = "\n" if name in _OWN_LINE else ""
    if name in _VOID and not children:
        return Markup(f"<{name}{spelt}/>{end}")
    return Markup(f"<{name}{spelt}>{escaped(children)}</{name}>{end}")


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(visible(str(value)))}"'


def document(title: str, style: Markup, script: Markup, *body: Child) -> str:
    """A whole page. Nothing is fetched, no script runs but its own: the page's own policy forbids it."""
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body, tag('script', script)), lang='en')}\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
