# SPDX-License-Identifier: GPL-2.0-only
"""The table of bench/tools: runs of a cell put together, which variants are slower than unpatched, docs/tools.md."""

from __future__ import annotations

import lab
from cells.toolcells import Cell, Results

SLOWER = 1.03  # times unpatched: more than that is told
UNPATCHED = "unpatched"
HEAD = ["volume, memory", "work", "variant", "reads", "seeks", "seconds", "to unpatched", "wall", "peak MiB", "runs"]
INTRO = """<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Made by `bench/tools --table --markdown docs/tools.md`, not by hand. -->
# tar, rsync, cp, ls, du, rm: patched and not

What each asks of the disk, cold: read requests, seeks among them, and the seconds they take on the disk of 10,000
revolutions a minute that [design.md](design.md) describes (`rm`: all requests, with what is written). `wall` is of
the machine that measured, with its disk in memory, and for itree of a kernel that is a program there: compare it
within a volume, if at all. {counts}
How volumes are made, what limits memory, and what was measured again since: [bench/](../bench/README.md).
`to unpatched` is the ratio of the seconds; of several runs the one in the middle stands here."""


def seconds(cell: Cell, figures: dict) -> float:
    """What counts: writes, too, if the volume is changed."""
    return figures["all" if cell.work.changes else "reads"]["seconds"]


def runs(cell: Cell, inputs: dict, results: Results) -> list[dict]:
    """All runs of a cell that are kept, in their order."""
    found = []
    while (figures := results.get(numbered(inputs, len(found)))) is not None:
        found.append(figures)
    return found


def numbered(inputs: dict, run: int) -> dict:
    """What the figures of a cell's run are kept by; the first is 0."""
    return {**inputs, "run": run} if run else inputs


def middle(cell: Cell, found: list[dict]) -> dict | None:
    """The run in the middle, of an even number the slower one, and how many there are."""
    if not found:
        return None
    ordered = sorted(found, key=lambda figures: seconds(cell, figures))
    return {**ordered[len(ordered) // 2], "runs": len(found)}


def place(cell: Cell) -> tuple[str, ...]:
    """What the variants of a work on a volume have in common."""
    return cell.kind, cell.fill, cell.memory, cell.work.name


def unpatched(told: dict[Cell, dict | None]) -> dict[tuple[str, ...], dict]:
    """What variants are compared with, by place()."""
    return {place(c): f for c, f in told.items() if f and c.variant == UNPATCHED and seconds(c, f)}


def ratios(told: dict[Cell, dict | None]) -> dict[Cell, float]:
    """Seconds of each variant by those of the unpatched program on the same volume, where both are there."""
    base = unpatched(told)
    return {
        cell: seconds(cell, figures) / seconds(cell, base[place(cell)])
        for cell, figures in told.items()
        if figures and cell.variant != UNPATCHED and place(cell) in base
    }


def slower(told: dict[Cell, dict | None]) -> dict[Cell, float]:
    """Those of ratios() that are above SLOWER."""
    return {cell: ratio for cell, ratio in ratios(told).items() if ratio > SLOWER}


def doubtful(told: dict[Cell, dict | None], most: int) -> list[Cell]:
    """Variants slower than unpatched, and what they are compared with, of fewer than most runs."""
    above = slower(told)
    wanted = {place(cell) for cell in above}
    return [
        cell
        for cell, figures in told.items()
        if figures
        and figures["runs"] < most
        and (cell in above or (cell.variant == UNPATCHED and place(cell) in wanted))
    ]


def due(told: dict[Cell, dict | None], most: int) -> list[Cell]:
    """What is to be measured next: what is missing, then what is doubtful()."""
    return [cell for cell, figures in told.items() if not figures] or doubtful(told, most)


def verdict(told: dict[Cell, dict | None]) -> list[str]:
    """Lines that say what is slower than unpatched, and what is not known."""
    compared, above, base = ratios(told), slower(told), unpatched(told)
    missing = sum(c.variant != UNPATCHED for c in told) - len(compared)
    lines = [f"{len(compared)} variants compared with unpatched, {missing} not measured"]
    lines.append(f"slower by more than {SLOWER - 1:.0%}: {len(above) or 'none'}")
    for cell, ratio in sorted(above.items(), key=lambda item: -item[1]):
        few = min(told[cell]["runs"], base[place(cell)]["runs"])
        lines.append(f"{cell}: {ratio:.3f} ({f'{few} runs' if few > 1 else 'one run'})")
    return lines


def common(figures: dict) -> list[str]:
    """Requests, seeks, wall time and peak memory, as the table on the terminal has them, too."""
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


def markdown(told: dict[Cell, dict | None], counts: str) -> str:
    """docs/tools.md; counts: a sentence that says how many files there are."""
    found = ratios(told)
    rows = [row(cell, figures, found.get(cell)) for cell, figures in told.items()]
    lines = [INTRO.format(counts=counts), "", *(f"- {line}" for line in verdict(told)), ""]
    return "\n".join([*lines, *lab.table_markdown(HEAD, rows)]) + "\n"
