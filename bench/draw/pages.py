# SPDX-License-Identifier: GPL-2.0-only
"""A page of headings, texts, tables, pictures and folded parts, as HTML or as Markdown."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

STYLE = """
body { font: 16px/1.45 sans-serif; margin: 0 auto; max-width: 60rem; padding: 0 .8rem 3rem; color: #1b2631 }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem }
img { max-width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem }
th, td { border: 1px solid #ccd1d1; padding: .25rem .5rem; text-align: left; vertical-align: top }
code { font-size: .8rem; overflow-wrap: anywhere }
summary { cursor: pointer; margin: .8rem 0; color: #1f618d }
.met { background: #d5f5e3 } .missed { background: #fadbd8 } .open { background: #f2f3f4 }
"""


class Part(Protocol):
    """What a page is made of."""

    def html(self) -> str: ...

    def markdown(self) -> list[str]: ...


def _marked(text: str) -> str:
    """Text as HTML; `code` is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


@dataclass
class Heading:
    """A section's heading."""

    text: str

    def html(self) -> str:
        return f"<h2>{_marked(self.text)}</h2>"

    def markdown(self) -> list[str]:
        return [f"## {self.text}"]


@dataclass
class Text:
    """A paragraph."""

    text: str

    def html(self) -> str:
        return f"<p>{_marked(self.text)}</p>"

    def markdown(self) -> list[str]:
        return [self.text]


@dataclass
class Table:
    """A table; classes colours its rows in HTML."""

    head: list[str]
    rows: list[list[str]]
    classes: list[str] = field(default_factory=list)

    def html(self) -> str:
        def cells(row: list[str], tag: str) -> str:
            return "".join(f"<{tag}>{_marked(cell)}</{tag}>" for cell in row)

        lines = [f"<tr>{cells(self.head, 'th')}</tr>"]
        for number, row in enumerate(self.rows):
            name = f' class="{self.classes[number]}"' if self.classes else ""
            lines.append(f"<tr{name}>{cells(row, 'td')}</tr>")
        return f'<div class="wide"><table>{"".join(lines)}</table></div>'

    def markdown(self) -> list[str]:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return [f"| {' | '.join(row)} |" for row in lines]


@dataclass
class Picture:
    """A picture from a file, or one that lies below the page."""

    title: str
    path: Path
    there: str = "results"

    def html(self) -> str:
        image = base64.b64encode(self.path.read_bytes()).decode()
        return f'<img alt="{html.escape(self.title)}" src="data:image/png;base64,{image}">'

    def markdown(self) -> list[str]:
        return [f"![{self.title}]({self.there}/{self.path.name})"]


@dataclass
class Fold:
    """Parts that a reader opens."""

    summary: str
    parts: list[Part]

    def html(self) -> str:
        inner = "\n".join(part.html() for part in self.parts)
        return f"<details><summary>{_marked(self.summary)}</summary>{inner}</details>"

    def markdown(self) -> list[str]:
        # The attribute is for MkDocs; GitHub needs the empty lines.
        return ['<details markdown="1">', f"<summary>{_marked(self.summary)}</summary>", "",
                *_lines(self.parts), "", "</details>"]  # fmt: skip


def _lines(parts: Iterable[Part]) -> list[str]:
    """The parts' Markdown with an empty line between two of them."""
    lines: list[str] = []
    for part in parts:
        lines += [*([""] if lines else []), *part.markdown()]
    return lines


def as_html(title: str, parts: Iterable[Part]) -> str:
    """A page in one file, readable on a phone."""
    head = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>"
    )
    return "\n".join([head, *(part.html() for part in parts), "</body></html>\n"])


def as_markdown(title: str, parts: Iterable[Part], comments: Iterable[str]) -> str:
    """A page below docs/; comments stand above its title."""
    return "\n".join([*(f"<!-- {c} -->" for c in comments), f"# {title}", "", *_lines(parts)]) + "\n"
