# SPDX-License-Identifier: GPL-2.0-only
"""The two pictures of the demo, drawn from the run's recordings.

Two panels one above the other, large type, tall format: readable on a phone.
"""

from __future__ import annotations

import bisect
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator

from model import pricing
from trace import records

IGNORED = "#b03a2e"
USED = "#1f618d"
SIZE = (7.2, 9.6)
DPI = 150
# gaps of more sectors than this (8 MiB) without a read are left out of the picture
BAND_GAP = 1 << 14
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
        back = sum(1 for a, b in zip(numbers, numbers[1:]) if b < a)
        axis.plot(range(len(numbers)), numbers, ".", markersize=1.5, markeredgewidth=0, color=colour)
        axis.set_title(f"{name}: {back:,} steps back in {len(numbers):,} entries")
        axis.set_ylabel("inode number")
        axis.set_ylim(low - margin, high + margin)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.yaxis.set_major_formatter(FuncFormatter(_thousands))
        axis.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes[1].set_xlabel("position in the readdir sequence")
    _save(figure, path)


class Bands:
    """Disk addresses without the long stretches that are not read.

    An ext4 directory's blocks, its inode tables and its files can be 100 GB
    apart; to scale, each of them would look like a line.
    """

    def __init__(self, sectors: list[int]):
        marks = sorted(set(sectors))
        self.bands: list[list[int]] = []
        for sector in marks:
            if self.bands and sector - self.bands[-1][1] <= BAND_GAP:
                self.bands[-1][1] = sector
            else:
                self.bands.append([sector, sector])
        total = sum(last - first for first, last in self.bands)
        self.space = max(total * 0.06, 1)
        # make even a band of one address visible
        self.least = max(total * 0.02, 1)
        self.at: list[float] = []
        place = 0.0
        for first, last in self.bands:
            self.at.append(place)
            place += max(last - first, self.least) + self.space
        self.top = max(place - self.space, 1)
        self.starts = [first for first, _ in self.bands]

    def place(self, sector: int) -> float:
        number = bisect.bisect_right(self.starts, sector) - 1
        return self.at[number] + sector - self.starts[number]

    def dress(self, axis) -> None:
        """Draw ticks at the ends of the bands, and lines between bands."""
        ticks, labels = [], []
        close = self.top * 0.05
        for (first, last), at in zip(self.bands, self.at):
            if at:
                axis.axhline(at - self.space / 2, color="0.6", linewidth=0.8, linestyle="--")
            for sector, place in ((first, at), (last, at + last - first)):
                if not ticks or place - ticks[-1] >= close:
                    ticks.append(place)
                    labels.append(f"{sector * records.SECTOR / 1e9:,.3f}")
        axis.set_yticks(ticks, labels)
        axis.set_ylim(-self.top * 0.03, self.top * 1.03)


def disk_addresses(path: Path, title: str, ignored: list[records.Request], used: list[records.Request]) -> None:
    """Disk address of each read over the modelled time, tree ignored and used."""
    figure, axes = _panels(title)
    priced = [list(pricing.walk(r for r in part if r.is_read)) for part in (ignored, used)]
    ends = [part[-1][0] if part else 0.0 for part in priced]
    bands = Bands([q.sector for part in priced for _, q, _, _ in part])
    for axis, part, end, name, colour in (
        (axes[0], priced[0], ends[0], "tree ignored", IGNORED),
        (axes[1], priced[1], ends[1], "tree used", USED),
    ):
        times = [done for done, _, _, _ in part]
        places = [bands.place(q.sector) for _, q, _, _ in part]
        axis.plot(times, places, ".", markersize=3, markeredgewidth=0, color=colour)
        axis.set_title(f"{name}: {len(part):,} reads, {end:,.2f} s")
        axis.set_ylabel("disk address (GB)")
        axis.set_xlim(0, max(*ends, 1e-3) * 1.02)
        bands.dress(axis)
        if end < max(ends) / 3:
            # too short to see on the common scale: the same again, wider
            zoom = axis.inset_axes([0.4, 0.12, 0.57, 0.78])
            zoom.plot(times, places, ".-", markersize=4, linewidth=0.4, color=colour)
            zoom.set_title("the same, time stretched", fontsize=12)
            zoom.set_xlabel("s", fontsize=12, labelpad=0)
            zoom.tick_params(labelsize=11)
            zoom.grid(alpha=0.25)
            bands.dress(zoom)
            zoom.set_yticklabels([])
    axes[1].set_xlabel("time on the modelled disk (s)")
    if len(bands.bands) > 1:
        figure.supxlabel("dashed: stretches of the disk that are not read are left out", fontsize=12)
    _save(figure, path)


def read_sequence(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]
