# SPDX-License-Identifier: GPL-2.0-only
"""The cells of bench/matrix: which there are, what each runs, where its result is kept.

A cell is one work on one directory of one system, named as in
`itree/tar/100000/4096/aged`. Its result is one JSON file; the hash of all that
went in is in it, and a result whose hash is another today is measured again.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import lab
from lab import LabError
from lab.images import Volume

# changes when the same command would give figures of another meaning
VERSION = 2
SYSTEMS = {
    "ext4": "ext4",
    "ext4+sort": "ext4",  # the preload of coreutils-patches under the usual programs
    "itree": "itree",
    "itree+tools": "itree",  # the patched programs
    "xfs": "xfs",
    "btrfs": "btrfs",
}
# in the order they are done: rm leaves nothing for the others
WORKS = ("create", "names", "lstat", "ls", "tar", "copy", "randstat", "missing", "mail", "rm", "insn")
COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 5_000_000)
SIZES = (0, 4096)
FILLS = ("clean", "aged")
# names asked for in random order: enough that the directory's blocks and inodes are cold for most
LOOKUPS = 10_000
# deliveries, deletions, reads and so on, in a guest of their own
MAIL = 5_000
TOOLS = lab.BUILD / "coreutils-patches" / "root"
# what our programs in a command are made of; fill.c is part of the volume's key
SOURCES = {
    "walk": ("walk.c",),
    "lookup": ("lookup.c", "names.h", "random.h"),
    "mailmix": ("mailmix.c", "names.h", "random.h"),
    "insn.sh": ("insn.sh", "insn.c", "walk.c"),
}
# of these in as much memory as filling needs, whatever was asked for
LARGE = ("create", "rm", "insn")
ONLY = {"ext4+sort": ("lstat", "ls", "tar", "copy"), "itree+tools": ("ls", "tar", "copy")}


@dataclass(frozen=True)
class Cell:
    system: str
    work: str
    count: int
    bytes: int
    fill: str

    @property
    def name(self) -> str:
        return f"{self.system}/{self.work}/{self.count}/{self.bytes}/{self.fill}"

    @property
    def slug(self) -> str:
        return self.name.replace("/", "_")

    @property
    def volume(self) -> Volume:
        return Volume(SYSTEMS[self.system], self.fill, self.count, self.bytes)

    def program(self, name: str) -> list[str]:
        """How this system runs a program of the distribution."""
        if self.system == "ext4+sort":
            return [str(TOOLS / "bin" / "diskorder"), name]
        if self.system == "itree+tools":
            return [str(TOOLS / "bin" / name)]
        return [name]

    def command(self) -> list[str]:
        """What the guest runs; fill, walk and their like are found in its PATH's place by bench/matrix."""
        sort = self.system == "ext4+sort"
        disk_order = ["--sort=disk"] if self.system == "itree+tools" else []
        counted = ["bash", "-c", 'set -o pipefail; "$@" | wc "$0"']
        return {
            "create": self.volume.command(),
            "names": ["walk", "-n", "-o", "{share}/inodes.txt", "-N", "{share}/names.txt", "{mnt}/dir"],
            "lstat": [*self.program("walk"), "-c", "{mnt}/dir"] if sort else ["walk", "{mnt}/dir"],
            "ls": [*counted, "-l", *self.program("ls"), "-l", "{mnt}/dir"],
            "tar": [*counted, "-c", *self.program("tar"), *disk_order, "-cf", "-", "-C", "{mnt}", "dir"],
            "copy": ["bash", "-c", '"$@" && sync -f "$0"', "{second}"]
            + [*self.program("cp"), "-r", "{mnt}/dir", "{second}"],
            "randstat": ["lookup", "-k", str(LOOKUPS), "{share}/names.txt", "{mnt}/dir"],
            "missing": ["lookup", "-m", "-k", str(LOOKUPS), "{share}/names.txt", "{mnt}/dir"],
            "mail": ["mailmix", "-k", str(MAIL), "{share}/names.txt", "{mnt}/dir", "{mnt}/tmp"],
            # what rm leaves to the journal and to write-back is part of its cost
            "rm": ["bash", "-c", 'rm -r "$0/dir" && sync -f "$0"', "{mnt}"],
            "insn": ["insn.sh", str(self.count), str(self.bytes)],
        }[self.work]

    def needs_tools(self) -> list[Path]:
        """Files of ours, beside walk and its like, that the command runs."""
        if self.system == "ext4+sort":
            return [TOOLS / "lib" / "libdiskorder-preload.so"]
        if self.system == "itree+tools":
            return [TOOLS / "bin" / {"copy": "cp"}.get(self.work, self.work)]
        return []

    def memory(self, memory: str) -> str:
        """What the guest has; XFS runs out of 192 MiB in rm -r of 300,000 files.

        A directory of 5,000,000 has 400 MiB itself: who has that many has memory for it. ls -l keeps 285 bytes of each
        name until it has sorted them, any ls.
        """
        if self.work == "ls" and self.count >= 5_000_000:
            return "3G"
        return lab.FILL_MEMORY if self.work in LARGE or self.count >= 5_000_000 else memory

    def inputs(self, memory: str) -> dict:
        """All that the result depends on, as JSON."""
        kernel = lab.KERNEL if lab.fs_type(SYSTEMS[self.system]) == "ext4" else None
        command = self.command()
        files = [lab.WORKLOADS / name for word, names in SOURCES.items() if word in command for name in names]
        return {
            "version": VERSION,
            "cell": self.name,
            "volume": _volume_key(self.volume),
            "kernel": file_hash(kernel) if kernel else lab.kernel_version(),
            "command": [part.replace(str(lab.BUILD), "build") for part in command],
            "files": {path.name: file_hash(path) for path in [*files, *self.needs_tools()]},
            "memory": self.memory(memory),
        }


@functools.cache
def file_hash(path: Path) -> str:
    if not path.exists():
        raise LabError(f"{path} is missing: run `make kernel e2fsprogs`, and `ITREE_FULL=1 make tools`")
    return lab.sha256(path)


@functools.cache
def _volume_key(volume: Volume) -> str:
    return volume.cache().key


def all_cells() -> list[Cell]:
    """Every cell there is, smallest directories first, all works of one volume and system together."""
    return [
        Cell(system, work, count, size, fill)
        for count in COUNTS
        for size in reversed(SIZES)
        for fill in FILLS
        for system in SYSTEMS
        for work in WORKS
        if work in ONLY.get(system, WORKS)
        # instructions do not depend on how the directory was filled: it is filled while they are counted
        and not (work == "insn" and fill == "aged")
    ]


def pick(patterns: Iterable[str]) -> list[Cell]:
    """Cells whose names match any of the patterns; a pattern that matches none is an error."""
    cells = all_cells()
    picked = []
    for pattern in patterns:
        found = [c for c in cells if fnmatch.fnmatchcase(c.name, pattern)]
        if not found:
            raise LabError(
                f"no cell is called '{pattern}': SYSTEM/WORK/COUNT/BYTES/FILL, `bench/matrix --list` has all"
            )
        picked += found
    return [c for c in cells if c in set(picked)]


class Results:
    """The results in the cache: NAME.json, and NAME.trace.gz beside it."""

    def __init__(self, where: Path | None = None):
        self.where = where or lab.cache_dir() / "results"
        self.where.mkdir(parents=True, exist_ok=True)

    def path(self, cell: Cell) -> Path:
        return self.where / f"{cell.slug}.json"

    def trace(self, cell: Cell) -> Path:
        return self.where / f"{cell.slug}.trace.gz"

    def get(self, cell: Cell, key: str) -> dict | None:
        """The result if it is of these inputs."""
        try:
            told = json.loads(self.path(cell).read_text())
        except (OSError, ValueError):
            return None
        return told if told.get("key") == key else None

    def put(self, cell: Cell, inputs: dict, figures: dict, trace: Path | None) -> None:
        told = {"cell": cell.__dict__ | {"name": cell.name}, "key": hash_of(inputs), "inputs": inputs, **figures}
        self.trace(cell).unlink(missing_ok=True)
        if trace:
            shutil.copyfile(trace, self.trace(cell))
        part = self.path(cell).with_suffix(".part")
        part.write_text(json.dumps(told) + "\n")
        part.rename(self.path(cell))

    def all(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted(self.where.glob("*.json"))]


def hash_of(inputs: dict) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
