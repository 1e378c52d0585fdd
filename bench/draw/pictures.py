# SPDX-License-Identifier: GPL-2.0-only
"""The pictures of bench/report and itree-advise: large type, tall format, readable on a phone."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from draw import plot
from model import pricing
from model.disks import SAS10K, Disk
from trace import records

COLOURS = ("#1f618d", "#b03a2e", "#1e8449", "#b9770e", "#6c3483", "#117a65", "#5d6d7e", "#d81b60")
SYSTEM_COLOURS = dict(zip(("itree", "ext4", "itree+tools", "ext4+sort", "xfs", "btrfs"), COLOURS))
DPI = 80
# points to draw of a trace; the omitted ones would not be visible
POINTS = 60_000
# processes with a colour of their own
PROCESSES = 6


def _figure(title: str, rows: int, height: float):
    plt.rcParams.update(plot.TYPE)
    figure, axes = plt.subplots(rows, 1, figsize=(7.2, height), layout="constrained", squeeze=False)
    figure.suptitle(title)
    return figure, [row[0] for row in axes]


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)


def order(path: Path, title: str, sequences: dict[str, list[list[int]]]) -> None:
    """Inode number by position in the readdir sequence, a panel per system; sequences hold [position, inode]."""
    figure, axes = _figure(title, len(sequences), 2.6 * len(sequences) + 1)
    for axis, (system, points) in zip(axes, sequences.items()):
        places, inodes = [at for at, _ in points], [ino for _, ino in points]
        axis.plot(places, inodes, ".", markersize=3, markeredgewidth=0, color=SYSTEM_COLOURS.get(system, COLOURS[6]))
        back = sum(1 for a, b in zip(inodes, inodes[1:]) if b < a)
        axis.set_title(f"{system}: {back:,} steps back in {len(points):,} points")
        axis.set_ylabel("inode")
        axis.grid(alpha=0.25)
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    axes[-1].set_xlabel("position in the readdir sequence")
    _save(figure, path)


def scaling(path: Path, title: str, curves: dict[str, dict[int, float]], ylabel: str) -> None:
    """A figure over the number of files, a curve per system, both axes logarithmic."""
    figure, (axis,) = _figure(title, 1, 7)
    for system, points in curves.items():
        axis.plot(list(points), list(points.values()), "o-", label=system, color=SYSTEM_COLOURS.get(system))
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("files in the directory")
    axis.set_ylabel(ylabel)
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    _save(figure, path)


def gains(path: Path, title: str, values: dict[str, list[float | None]]) -> None:
    """How many times faster each work is, on a clean and on an aged volume; the axis is logarithmic."""
    figure, (axis,) = _figure(title, 1, 1.8 + 0.75 * len(values))
    names = list(values)[::-1]
    for number, (label, colour) in enumerate((("clean", COLOURS[0]), ("aged", COLOURS[3]))):
        known = [(place, values[name][number]) for place, name in enumerate(names) if values[name][number]]
        drawn = axis.barh([place + 0.2 - 0.4 * number for place, _ in known], [value for _, value in known], 0.4,
                          label=label, color=colour)  # fmt: skip
        axis.bar_label(drawn, [f"{value:,.3g}" for _, value in known], padding=4)
    axis.set_yticks(range(len(names)), [textwrap.fill(name, 22) for name in names])
    axis.set_xscale("log")
    axis.set_xlim(1, 4 * max(value or 1 for pair in values.values() for value in pair))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    figure.legend(loc="outside lower center", ncols=2)
    _save(figure, path)


def bars(path: Path, title: str, values: dict[str, float], xlabel: str) -> None:
    """One bar per system, with its figure."""
    figure, (axis,) = _figure(title, 1, 1.6 + 0.7 * len(values))
    names = list(values)[::-1]
    drawn = axis.barh(names, [values[n] for n in names], color=[SYSTEM_COLOURS.get(n, COLOURS[6]) for n in names])
    axis.bar_label(drawn, [f"{values[n]:,.2f}" for n in names], padding=4)
    axis.margins(x=0.2)
    axis.set_xlabel(xlabel)
    axis.grid(alpha=0.3, axis="x")
    _save(figure, path)


def seeks(path: Path, title: str, requests: Iterable[records.Request], disk: Disk = SAS10K) -> None:
    """Disk address over the modelled time, a colour per process, above a histogram of request times."""
    done = [(clock, req) for clock, req, _, _ in pricing.walk(requests, disk)]
    figure, (upper, lower) = _figure(title, 2, 10)
    common = [comm for comm, _ in Counter(req.comm for _, req in done).most_common(PROCESSES)]
    bands = plot.Bands([req.sector for _, req in done])
    step = max(1, len(done) // POINTS)
    service: dict[str, list[float]] = {}
    before = 0.0
    for clock, req in done:
        service.setdefault(req.comm if req.comm in common else "others", []).append((clock - before) * 1000)
        before = clock
    for name, colour in zip(service, COLOURS):
        part = [(clock, req) for clock, req in done[::step] if (req.comm if req.comm in common else "others") == name]
        for marker, some in (("o", [p for p in part if p[1].is_read]), ("x", [p for p in part if p[1].is_write])):
            if some:
                places = [bands.place(req.sector) for _, req in some]
                label = f"{name} ({'reads' if marker == 'o' else 'writes'})"
                size = 2.5 if marker == "o" else 3.5
                upper.plot([t for t, _ in some], places, marker, markersize=size, color=colour, label=label)
    bands.dress(upper)
    upper.set_ylabel("disk address (GB)")
    upper.set_xlabel(f"seconds on {disk.title}")
    upper.set_title(f"{len(done):,} requests, {before:,.2f} s")
    upper.legend(fontsize=11, loc="upper right", markerscale=2)
    lower.hist(list(service.values()), bins=40, stacked=True, color=COLOURS[: len(service)], label=list(service))
    lower.set_yscale("log")
    lower.set_xlabel("milliseconds a request takes")
    lower.set_ylabel("requests")
    lower.grid(alpha=0.3)
    _save(figure, path)
