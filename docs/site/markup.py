"""Markdown out of text that is not ours: nothing in it is taken for markup."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

_SPECIAL = re.compile(r"[^\w\s,;%/'\"]")
_CODE = re.compile(r"``(.+?)``|`([^`]+)`", re.DOTALL)
_INDENT = "    "


def escaped(text: object) -> str:
    """Return text as entities wherever Markdown or HTML would see more in it than text."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", " ".join(str(text).split()))


def code(text: object) -> str:
    """Return text as code, whatever it holds."""
    return f"<code>{escaped(text)}</code>"


def prose(text: str) -> str:
    """Return text whose code stands between back quotes."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [_kept(text[end : found.start()]), code(found[1] or found[2])]
        end = found.end()
    return "".join([*parts, _kept(text[end:])])


def _kept(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", re.sub(r"\s+", " ", text))


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; its cells are Markdown already."""
    head = list(columns)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def docstring(thing: object) -> str:
    """Return the docstring of an object as Markdown, an example in it as a code block."""
    return documented(inspect.getdoc(thing) or "")


def documented(text: str) -> str:
    """Return a docstring's text as Markdown; what stands indented behind ``::`` is code."""
    return "\n\n".join(_blocks(text.split("\n\n"))) + "\n\n"


def _blocks(paragraphs: Iterable[str]) -> Iterator[str]:
    waiting: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith(_INDENT):
            waiting.append(inspect.cleandoc(paragraph))
            continue
        yield from _fenced(waiting)
        waiting = []
        yield prose(re.sub(r"::\Z", ":", paragraph.strip()))
    yield from _fenced(waiting)


def _fenced(blocks: list[str]) -> Iterator[str]:
    if blocks:
        body = "\n\n".join(blocks)
        yield f"```python\n{body}\n```"
