#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The two pictures of the demo, drawn from what the run recorded.

Two panels one above the other, large type, tall format: readable on a phone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import model
from matplotlib.ticker import FuncFormatter, MaxNLocator

IGNORED = "#b03a2e"
USED = "#1f618d"
SIZE = (7.2, 9.6)
DPI = 150
TYPE = {"font.size": 15, "axes.titlesize": 16, "axes.labelsize": 15, "figure.titlesize": 18}


def _thousands(value: float, _position: int) -> str:
    return f"{value:,.0f}"


def _panels(title: str):
    plt.rcParams.update(TYPE)
    figure, axes = plt.subplots(2, 1, figsize=SIZE, layout="constrained")
    figure.suptitle(title)
    for axis in axes:
        axis.grid(alpha=0.25)
    return figure, axes


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)


def inode_order(path: Path, title: str, ignored: list[int], used: list[int]) -> None:
    """Inode number over position in the readdir sequence, tree ignored and used."""
    figure, axes = _panels(title)
    low, high = min([*ignored, *used], default=0), max([*ignored, *used], default=1)
    margin = max((high - low) * 0.03, 1)
    for axis, numbers, name, colour in (
        (axes[0], ignored, "tree ignored", IGNORED),
        (axes[1], used, "tree used", USED),
    ):
        back = sum(1 for a, b in zip(numbers, numbers[1:], strict=False) if b < a)
        axis.plot(range(len(numbers)), numbers, ".", markersize=1.5, markeredgewidth=0, color=colour)
        axis.set_title(f"{name}: {back:,} steps back in {len(numbers):,} entries")
        axis.set_ylabel("inode number")
        axis.set_ylim(low - margin, high + margin)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.yaxis.set_major_formatter(FuncFormatter(_thousands))
        axis.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes[1].set_xlabel("position in the readdir sequence")
    _save(figure, path)


def disk_addresses(path: Path, title: str, ignored: list[model.Request], used: list[model.Request]) -> None:
    """Disk address of each read over the modelled time, tree ignored and used."""
    figure, axes = _panels(title)
    priced = [list(model.walk(r for r in part if r.is_read)) for part in (ignored, used)]
    ends = [part[-1][0] if part else 0.0 for part in priced]
    top = max((q.sector for part in priced for _, q, _, _ in part), default=1)
    low = min((q.sector for part in priced for _, q, _, _ in part), default=0)
    scale, unit = model.SECTOR / 1e9, "GB"
    if (top - low) * scale < 1:
        scale, unit = model.SECTOR / 1e6, "MB"
    margin = max((top - low) * scale * 0.04, 1e-3)
    for axis, part, end, name, colour in (
        (axes[0], priced[0], ends[0], "tree ignored", IGNORED),
        (axes[1], priced[1], ends[1], "tree used", USED),
    ):
        times = [done for done, _, _, _ in part]
        places = [q.sector * scale for _, q, _, _ in part]
        axis.plot(times, places, ".", markersize=2.5, color=colour, alpha=0.6)
        axis.set_title(f"{name}: {len(part):,} reads, {end:,.2f} s")
        axis.set_ylabel(f"disk address ({unit})")
        axis.set_xlim(0, max(*ends, 1e-3) * 1.02)
        axis.set_ylim(low * scale - margin, top * scale + margin)
        if end < max(ends) / 3:
            # too short to see on the common scale: the same again, wider
            zoom = axis.inset_axes([0.46, 0.12, 0.5, 0.76])
            zoom.plot(times, places, ".", markersize=2.5, color=colour, alpha=0.6)
            zoom.set_title("the same, time stretched", fontsize=12)
            zoom.set_xlabel("s", fontsize=12, labelpad=0)
            zoom.tick_params(labelsize=11)
            zoom.grid(alpha=0.25)
    axes[1].set_xlabel("time on the modelled disk (s), both on one scale")
    _save(figure, path)


def read_sequence(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("inodes", "addresses"))
    parser.add_argument("ignored", type=Path, help="walk -o list, or a trace")
    parser.add_argument("used", type=Path, help="the same with the tree used")
    parser.add_argument("picture", type=Path, help="PNG to write")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    if args.what == "inodes":
        pair = [read_sequence(p) for p in (args.ignored, args.used)]
        inode_order(args.picture, args.title, *pair)
    else:
        traces = [model.read_trace(p) for p in (args.ignored, args.used)]
        disk_addresses(args.picture, args.title, *traces)
    return 0


if __name__ == "__main__":
    sys.exit(main())
