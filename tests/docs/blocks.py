# SPDX-License-Identifier: GPL-2.0-only
"""Code blocks of the documentation, and the marks that say how a test runs them.

A mark is an HTML comment directly before the block, which no reader sees:

    <!-- run: bookworm trixie -->   in a root of each, as root, with a release served on loopback
    <!-- run: dnf -->               in a root that dnf made
    <!-- run: vm -->                in our kernel, with DEVICE and MOUNTPOINT
    <!-- run: vm, from a volume without the feature -->
    <!-- as in: PAGE -->            each line stands in a block of that page, which has a mark of its own
    <!-- not run: REASON -->

The blocks of a page that name the same root run in it one after the other, as a reader would.
"""

import dataclasses
import pathlib
import re

from markdown_it import MarkdownIt

MARK = re.compile(
    r"<!-- (?:run: (?P<roots>[a-z ]+?)(?P<plain>, from a volume without the feature)?"
    r"|as in: (?P<page>\S+)|not run: (?P<why>.+)) -->"
)


@dataclasses.dataclass(frozen=True)
class Block:
    """roots is empty if no test runs the block. Then copy names the page that has its lines, or why says why not."""

    page: str
    line: int
    text: str
    roots: tuple[str, ...]
    plain: bool = False
    copy: str | None = None
    why: str | None = None

    def __str__(self):
        return f"{self.page}:{self.line}"


def read(path, repo):
    """Return the code blocks of a page in order; path is below the directory repo."""
    blocks, before = [], None
    for token in MarkdownIt().parse(pathlib.Path(path).read_text()):
        if token.type in ("code_block", "fence"):
            mark = MARK.fullmatch(before.content.strip()) if before and before.type == "html_block" else None
            page, line = str(pathlib.Path(path).relative_to(repo)), token.map[0] + 1
            words = mark.groupdict() if mark else {}
            roots = tuple((words.get("roots") or "").split())
            blocks.append(Block(page, line, token.content, roots, bool(words.get("plain")), words.get("page"),
                                words.get("why")))  # fmt: skip
        before = token
    return blocks
