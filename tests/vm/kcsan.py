# SPDX-License-Identifier: GPL-2.0-only
"""KCSAN's reports in a kernel log, and which of them concern the code of the itree.

KCSAN reports data races of the whole kernel, and the kernel as it is released
has many. A report is ours if a function of a file of ours accessed the data,
or called the function that did.
"""

from __future__ import annotations

import collections
import pathlib
import re

REPO = pathlib.Path(__file__).resolve().parents[2]
OURS = REPO / "kernel" / "fs" / "ext4"
TITLE = re.compile(r"BUG: KCSAN: .* in (?P<functions>.*)")
A_RACE = "^BUG: KCSAN: "  # for vm.run(allow=...)
ACCESS = re.compile(r"\bto 0x[0-9a-f]+ of \d+ bytes by ")
FRAME = re.compile(r"(?P<function>\w[\w.]*)\+0x[0-9a-f]+")
NEAR = 3  # frames of a stack: helpers such as memcpy() are not inlined
# A function begins in the first column; its name is the word before the parenthesis.
DEFINITION = re.compile(r"^(?:[a-z]\w*[ *]+)+(?P<name>\w+)\(", re.MULTILINE)
END = "=" * 20


def functions_of(directory: pathlib.Path = OURS) -> set[str]:
    """The names of the functions in our files."""
    return {m["name"] for path in directory.glob("*.[ch]") for m in DEFINITION.finditer(path.read_text())}


def races(text: str) -> list[tuple[str, set[str]]]:
    """The title of each report of a kernel log, and the functions that made the accesses or are near them."""
    found: list[tuple[str, set[str]]] = []
    title, near, depth = "", set(), 0
    for line in text.splitlines():
        match = TITLE.search(line)
        if match:
            title, near, depth = re.sub(r"\+0x\S+", "", match["functions"]).strip(), set(), NEAR
        elif title and line.rstrip().endswith(END):
            found.append((title, near))
            title = ""
        elif ACCESS.search(line):
            depth = 0
        elif title and depth < NEAR and (frame := FRAME.search(line)):
            near.add(frame["function"].partition(".")[0])  # without what the compiler adds, as in .isra.0
            depth += 1
    return found


def ours(text: str, functions: set[str]) -> dict[str, int]:
    """The titles of the reports that concern these functions, and how often each came."""
    return dict(collections.Counter(title for title, near in races(text) if near & functions))
