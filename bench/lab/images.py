# SPDX-License-Identifier: GPL-2.0-only
"""Filled volumes for bench/peers and bench/matrix: filled and measured in a guest, kept in the cache."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import lab
from lab import LabError, Step, say
from model import pricing
from trace import records

AGED_PERCENT = 30
USUAL_BYTES = 4096

# This takes a second, and cannot change while this program runs.
_mkfs_identity = functools.cache(lab.mkfs_identity)


@dataclass(frozen=True)
class Volume:
    """One directory `dir` on a file system of its own, and how it is filled.

    sync_every: make ext4 commit by number of files and not by time, so that
    all of its kinds write the same transactions; 0 keeps its default of 5 s.
    """

    kind: str
    fill: str
    count: int
    bytes: int = USUAL_BYTES
    sync_every: int = 10_000

    @property
    def label(self) -> str:
        size = "" if self.bytes == USUAL_BYTES else f"-{self.bytes}b"
        return f"{self.kind}-{self.fill}-{self.count}{size}"

    @property
    def ours(self) -> bool:
        return lab.fs_type(self.kind) == "ext4"

    def options(self) -> str:
        """Mount options while it is filled."""
        options = lab.mount_options(self.kind)
        return options + ",commit=300" if self.ours and self.sync_every else options

    def command(self) -> list[str]:
        percent = AGED_PERCENT if self.fill == "aged" else 0
        command = ["fill", "-n", str(self.count), "-s", str(self.bytes), "-a", str(percent)]
        if self.ours:
            command += ["-y", str(self.sync_every)]
        return [*command, "{mnt}/dir"]

    def cache(self) -> lab.ImageCache:
        inputs = lab.fill_inputs(
            self.kind, fill=self.command()[1:], options=self.options(), mkfs=_mkfs_identity(self.kind)
        )
        return lab.ImageCache(self.label, inputs)


def make(volume: Volume, tools, timeout: float) -> tuple[lab.ImageCache, dict]:
    """Fill the volume again; return its place in the cache and the cost of filling.

    Needs the lock of the cache. For ext4 the figures include the journal
    blocks written, and e2fsck has checked the volume.
    """
    cache = volume.cache()
    with lab.scratch("fill") as work:
        # including deleted files, whose blocks stay in the image
        grown = AGED_PERCENT / (100 - AGED_PERCENT) if volume.fill == "aged" else 0
        lab.need_space(work, int(volume.count * (volume.bytes + 1024) * (1.2 + 2 * grown)) + (2 << 30))
        cache.drop()
        say(f"  {volume.kind} {volume.fill}: filling {volume.count:,} files of {volume.bytes:,} bytes")
        image = work / "disk.img"
        lab.make_fs(volume.kind, image)
        command = volume.command()
        command[0] = str(tools / command[0])
        step = Step("fill", command, volume.options(), title=f"fill {volume.kind} {volume.fill}", timeout=timeout)
        report = lab.run_guest([(image, volume.kind)], [step], work / "fill", lab.FILL_MEMORY, timeout)
        result = report.json("fill")
        if result["live"] != volume.count:
            raise LabError(f"fill made {result['live']} files, {volume.count} wanted")
        requests = report.requests("fill")
        figures = report.figures("fill", requests)
        figures |= {"created": result, "counters": report.steps["fill"]["counters"]}
        figures["disks"] = pricing.on_all_disks(requests)
        if volume.ours:
            extents, block = lab.journal_extents(image)
            figures["journal_blocks"] = records.blocks_written(requests, extents, block)
            figures["directory"] = directory_blocks(image)
            lab.fsck(image)
        cache.put(image, {"facts": report.facts, "figures": figures})
    return cache, figures


def filled(volume: Volume, tools, timeout: float) -> lab.ImageCache:
    """The volume's place in the cache; fills it if it is missing. Needs the lock of the cache."""
    cache = volume.cache()
    if not cache.get():
        cache, _ = make(volume, tools, timeout)
    return cache


def directory_blocks(image) -> dict[str, int]:
    """Blocks of the directory `dir` from debugfs: for names, and for the tree (logical 0x80000000 on)."""
    text = lab.run([lab.E2FS / "debugfs", "-R", "extents /dir", image], 120).stdout
    result = {"names": 0, "tree": 0}
    for line in text.splitlines():
        # level/depth, entry/entries, first - last logical, first - last physical, length
        words = line.replace("/", " ").replace("-", " ").split()
        if len(words) < 9 or not words[0].isdigit() or words[0] != words[1]:
            continue
        first, last = int(words[4]), int(words[5])
        result["tree" if first >= 1 << 31 else "names"] += last - first + 1
    return result
