# SPDX-License-Identifier: GPL-2.0-only
"""What the itree brings, what it costs, and where it does not help: stock ext4 and the itree by the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cells.tables import BLOCK, NOT_MEASURED, WORK_TITLES, Data, number, setup_text

# the size of the summary, and the fills it has columns for
COUNT, FILLS = 300_000, ("clean", "aged")
# a work is faster from here on, and slower from there on; in between, it is as fast as with stock ext4
FASTER, SLOWER = 1.1, 0.97
TOOLS = "itree+tools"


def title(work: str, system: str) -> str:
    return WORK_TITLES[work] + (", our tools" if system == TOOLS else "")


def works(data: Data) -> Iterator[tuple[str, str]]:
    """Each work with each system to compare with stock ext4."""
    for work in WORK_TITLES:
        for system in ("itree", TOOLS):
            if system in data.systems(work):
                yield work, system


def gain(data: Data, system: str, work: str, setup: tuple[int, int, str]) -> tuple[float, float, float] | None:
    """Seconds with stock ext4, with the itree, and how many times faster that is; None if one was not measured."""
    stock, ours = (data.seconds((s, work, *setup)) for s in ("ext4", system))
    return (stock, ours, stock / ours) if stock and ours else None


def brings(data: Data) -> tuple[list[str], list[list[str]]]:
    """The works that are faster at COUNT files, a row per work, a column per fill."""
    rows = []
    for work, system in works(data):
        found = [gain(data, system, work, (COUNT, 4096, fill)) for fill in FILLS]
        if any(f and f[2] >= FASTER for f in found):
            cells = [f"{number(f[0])} → {number(f[1])}, {number(f[2])} ×" if f else NOT_MEASURED for f in found]
            rows.append([title(work, system), *cells])
    return [f"{COUNT:,} files of 4 KiB, seconds", *FILLS], rows


def gains(data: Data) -> dict[str, list[float | None]]:
    """How many times faster each work of brings() is, a figure per fill."""
    found = {}
    for work, system in works(data):
        times = [gain(data, system, work, (COUNT, 4096, fill)) for fill in FILLS]
        if any(f and f[2] >= FASTER for f in times):
            found[title(work, system)] = [f[2] if f else None for f in times]
    return found


def more(ours: float | None, stock: float | None) -> str:
    return f"{(ours / stock - 1) * 100:+.1f} %" if ours is not None and stock else NOT_MEASURED


def costs(data: Data) -> tuple[list[str], list[list[str]]]:
    """What a create, a removal and a name in memory cost beside stock ext4, and the space of the tree."""

    def row(name: str, work: str, take: Callable[[dict], float | None]) -> list[str]:
        cells = [more(*(data.value((s, work, COUNT, 4096, fill), take) for s in ("itree", "ext4"))) for fill in FILLS]
        return [name, *cells]

    def instructions(what: str) -> Callable[[dict], float]:
        return lambda figures: figures["instructions"][what]

    rows = [
        row("create: blocks in the journal", "create", lambda f: f.get("journal_blocks")),
        *(
            row(f"{name}: instructions", "insn", instructions(what))
            for name, what in (
                ("create", "create"),
                ("names, in memory", "names"),
                ("getdents and lstat, in memory", "lstat"),
                ("rm -r", "rm"),
            )
        ),
    ]
    space = []
    for fill in FILLS:
        blocks = data.value(("itree", "create", COUNT, 4096, fill), lambda f: f.get("directory"))
        space.append(f"{blocks['tree'] * BLOCK / COUNT:.1f} bytes" if blocks else NOT_MEASURED)
    return [f"{COUNT:,} files of 4 KiB", *FILLS], [*rows, ["space of the tree for a name", *space]]


def no_help(data: Data) -> tuple[list[str], list[list[str]]]:
    """At every size measured, the works that are not faster, with those that are slower marked."""
    rows = []
    for work, system in works(data):
        for setup in data.setups(work):
            found = gain(data, system, work, setup)
            if found and found[2] < FASTER:
                stock, ours, times = found
                mark = "slower" if times < SLOWER else "as fast"
                rows.append(
                    [title(work, system), setup_text(*setup), f"{number(stock)} → {number(ours)}, {times:.2f} ×", mark]
                )
    return ["work", "files", "seconds", ""], rows
