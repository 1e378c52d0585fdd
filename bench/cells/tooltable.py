# SPDX-License-Identifier: GPL-2.0-only
"""The table of bench/tools: merges runs of a cell, lists variants slower than unpatched, writes docs/tools.md."""

from __future__ import annotations

import lab
from cells.toolcells import Cell, Results

SLOWER = 1.03  # report variants that take more than this, times unpatched
UNPATCHED = "unpatched"
HEAD = ["volume, memory", "work", "variant", "reads", "seeks", "seconds", "to unpatched", "wall", "peak MiB", "runs"]
INTRO = """<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Made by `bench/tools --table --markdown docs/tools.md`, not by hand. -->
# tar, rsync, cp, ls, du, rm: patched and not

Read requests, the seeks among them, and their seconds on the 10,000 rpm disk of
[measuring.md](measuring.md#the-disks); each work begins cold (`rm`: all requests, writes included). `wall` is the time
of the machine that measured. Its disk is in memory, and for itree the kernel is a program there, so compare it only
within a volume. {counts}
[figures.md](figures.md#tar-and-cp-in-little-memory) has what was measured again since.
`to unpatched` is the ratio of the seconds; of several runs, the median is shown."""


def seconds(cell: Cell, figures: dict) -> float:
    """Seconds of the requests that count: reads, and writes if the work changes the volume."""
    return figures["all" if cell.work.changes else "reads"]["seconds"]


def runs(cell: Cell, inputs: dict, results: Results) -> list[dict]:
    """All kept runs of a cell, in order."""
    found = []
    while (figures := results.get(numbered(inputs, len(found)))) is not None:
        found.append(figures)
    return found


def numbered(inputs: dict, run: int) -> dict:
    """The inputs by which the figures of a cell's run are kept; the first run is 0."""
    return {**inputs, "run": run} if run else inputs


def middle(cell: Cell, found: list[dict]) -> dict | None:
    """The median run (of an even number, the slower one), and how many runs there are."""
    if not found:
        return None
    ordered = sorted(found, key=lambda figures: seconds(cell, figures))
    return {**ordered[len(ordered) // 2], "runs": len(found)}


def place(cell: Cell) -> tuple[str, ...]:
    """A key that all variants of a work on a volume share."""
    return cell.kind, cell.fill, cell.memory, cell.work.name


def unpatched(by_cell: dict[Cell, dict | None]) -> dict[tuple[str, ...], dict]:
    """The unpatched figures that variants are compared with, by place()."""
    return {place(c): f for c, f in by_cell.items() if f and c.variant == UNPATCHED and seconds(c, f)}


def ratios(by_cell: dict[Cell, dict | None]) -> dict[Cell, float]:
    """Ratio of each variant's seconds to the unpatched program's on the same volume, if both are measured."""
    base = unpatched(by_cell)
    return {
        cell: seconds(cell, figures) / seconds(cell, base[place(cell)])
        for cell, figures in by_cell.items()
        if figures and cell.variant != UNPATCHED and place(cell) in base
    }


def slower(by_cell: dict[Cell, dict | None]) -> dict[Cell, float]:
    """The ratios() above SLOWER."""
    return {cell: ratio for cell, ratio in ratios(by_cell).items() if ratio > SLOWER}


def doubtful(by_cell: dict[Cell, dict | None], most: int) -> list[Cell]:
    """Cells with fewer than most runs that are slower than unpatched, or that these are compared with."""
    above = slower(by_cell)
    wanted = {place(cell) for cell in above}
    return [
        cell
        for cell, figures in by_cell.items()
        if figures
        and figures["runs"] < most
        and (cell in above or (cell.variant == UNPATCHED and place(cell) in wanted))
    ]


def due(by_cell: dict[Cell, dict | None], most: int) -> list[Cell]:
    """Cells to measure next: missing ones, then doubtful() ones."""
    return [cell for cell, figures in by_cell.items() if not figures] or doubtful(by_cell, most)


def verdict(by_cell: dict[Cell, dict | None]) -> list[str]:
    """Lines that list what is slower than unpatched, and what is not measured."""
    compared, above, base = ratios(by_cell), slower(by_cell), unpatched(by_cell)
    missing = sum(c.variant != UNPATCHED for c in by_cell) - len(compared)
    lines = [f"{len(compared)} variants compared with unpatched, {missing} not measured"]
    lines.append(f"slower by more than {SLOWER - 1:.0%}: {len(above) or 'none'}")
    for cell, ratio in sorted(above.items(), key=lambda item: -item[1]):
        few = min(by_cell[cell]["runs"], base[place(cell)]["runs"])
        lines.append(f"{cell}: {ratio:.3f} ({f'{few} runs' if few > 1 else 'one run'})")
    return lines


def common(figures: dict) -> list[str]:
    """Requests, seeks, wall time and peak memory, formatted as in the table on the terminal."""
    reads = figures["reads"]
    return [
        f"{reads['requests']:,}",
        f"{reads['seeks']:,}",
        f"{figures['wall']:,.1f}",
        f"{figures['peak_kib'] / 1024:,.1f}",
    ]


def row(cell: Cell, figures: dict | None, ratio: float | None) -> list[str]:
    head = [f"{cell.kind} {cell.fill}, {cell.memory}", f"`{cell.work.name}`", cell.variant]
    if not figures:
        return [*head, "not measured", *["-"] * 6]
    requests, seeks, wall, peak = common(figures)
    against = f"{ratio:.3f}" if ratio else "-"
    return [*head, requests, seeks, f"{seconds(cell, figures):,.1f}", against, wall, peak, str(figures["runs"])]


def markdown(by_cell: dict[Cell, dict | None], counts: str) -> str:
    """The text of docs/tools.md; counts: a sentence with the numbers of files."""
    found = ratios(by_cell)
    rows = [row(cell, figures, found.get(cell)) for cell, figures in by_cell.items()]
    lines = [INTRO.format(counts=counts), "", *(f"- {line}" for line in verdict(by_cell)), ""]
    return "\n".join([*lines, *lab.table_markdown(HEAD, rows)]) + "\n"
