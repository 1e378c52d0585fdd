# SPDX-License-Identifier: GPL-2.0-only
"""The cells of bench/matrix, their commands, and where their results are kept.

A cell is one work on one directory of one system, named as in
`itree/tar/100000/4096/aged`. Its result is a JSON file with a hash of all
inputs; a cell is measured again when that hash has changed.
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

# increase this when figures of the same command change their meaning
VERSION = 2
SYSTEMS = {
    "ext4": "ext4",
    "ext4+sort": "ext4",  # the preload of coreutils-patches under the usual programs
    "itree": "itree",
    "itree+tools": "itree",  # the patched programs
    "xfs": "xfs",
    "btrfs": "btrfs",
}
# in the order they run: rm leaves nothing for the others
WORKS = ("create", "names", "lstat", "ls", "tar", "copy", "randstat", "missing", "mail", "rm", "insn")
COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 5_000_000)
SIZES = (0, 4096)
FILLS = ("clean", "aged")
# names to look up in random order, few enough that most meet cold directory blocks and inodes
LOOKUPS = 10_000
# deliveries, deletions, reads and so on, in a guest of their own
MAIL = 5_000
TOOLS = lab.BUILD / "coreutils-patches" / "root"
# the sources of our programs in a command; fill.c is part of the volume's key
SOURCES = {
    "walk": ("walk.c",),
    "lookup": ("lookup.c", "names.h", "random.h"),
    "mailmix": ("mailmix.c", "names.h", "random.h"),
    "insn.sh": ("insn.sh", "insn.c", "walk.c"),
}
# works that need as much memory as filling, regardless of --memory
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
        """The command with which this system runs a program of the distribution."""
        if self.system == "ext4+sort":
            return [str(TOOLS / "bin" / "diskorder"), name]
        if self.system == "itree+tools":
            return [str(TOOLS / "bin" / name)]
        return [name]

    def command(self) -> list[str]:
        """The command for the guest; bench/matrix replaces fill, walk and the like by their paths."""
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
            # journal and write-back are part of rm's cost
            "rm": ["bash", "-c", 'rm -r "$0/dir" && sync -f "$0"', "{mnt}"],
            "insn": ["insn.sh", str(self.count), str(self.bytes)],
        }[self.work]

    def needs_tools(self) -> list[Path]:
        """Our files that the command runs, apart from the workloads."""
        if self.system == "ext4+sort":
            return [TOOLS / "lib" / "libdiskorder-preload.so"]
        if self.system == "itree+tools":
            return [TOOLS / "bin" / {"copy": "cp"}.get(self.work, self.work)]
        return []

    def memory(self, memory: str) -> str:
        """Memory of the guest; XFS runs out of 192 MiB in rm -r of 300,000 files.

        A directory of 5,000,000 names has 400 MiB itself, so a real server has memory for it. Any ls -l keeps 285
        bytes per name until it has sorted them.
        """
        if self.work == "ls" and self.count >= 5_000_000:
            return "3G"
        return lab.FILL_MEMORY if self.work in LARGE or self.count >= 5_000_000 else memory

    def inputs(self, memory: str) -> dict:
        """Everything the result depends on, as JSON."""
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
    """All cells, smallest directories first, all works of one volume and system together."""
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
        """The result, if it has the same inputs."""
        try:
            result = json.loads(self.path(cell).read_text())
        except (OSError, ValueError):
            return None
        return result if result.get("key") == key else None

    def put(self, cell: Cell, inputs: dict, figures: dict, trace: Path | None) -> None:
        result = {"cell": cell.__dict__ | {"name": cell.name}, "key": hash_of(inputs), "inputs": inputs, **figures}
        self.trace(cell).unlink(missing_ok=True)
        if trace:
            shutil.copyfile(trace, self.trace(cell))
        part = self.path(cell).with_suffix(".part")
        part.write_text(json.dumps(result) + "\n")
        part.rename(self.path(cell))

    def all(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted(self.where.glob("*.json"))]


def hash_of(inputs: dict) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
