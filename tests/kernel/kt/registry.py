# SPDX-License-Identifier: GPL-2.0-only
"""The cases, as host and guest both see them."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import pathlib
from collections.abc import Callable

REPO = pathlib.Path(__file__).resolve().parents[3]
MODULES = (
    "matrix", "ops", "scans", "space", "modes", "corrupt", "crash", "roundtrip", "online", "resume", "power", "damaged",
    "tools", "scrub", "faults", "neighbours", "dentries", "memory",
    "checksums", "onehash", "positions", "reader", "renames", "delivery", "misses", "bios", "groups", "change",
    "dirahead", "switch", "arrange", "memorder", "pack", "servers", "samba",
)  # fmt: skip


@dataclasses.dataclass
class Case:
    """A file system and a function that runs on it in the guest.

    A case gives one result per part; the result of fsck belongs to the last
    part.
    """

    id: str
    group: str
    func: Callable
    params: dict
    parts: tuple[str, ...] = ("",)
    size: str = "512M"
    features: str = ""  # for mke2fs -O
    mkfs: tuple[str, ...] = ()  # more arguments
    itree: bool = True  # with the feature
    cost: int = 10  # estimated seconds in the guest
    cpus: int = 1
    memory: str = "1G"
    limit: int = 300  # seconds
    allow: tuple[str, ...] = ()  # expected lines of the kernel log
    fsck: str = "clean"  # or "repair": e2fsck -fy, then clean; or "none"
    host: str = ""  # function of kt.hostside, after the guest
    image: str = ""  # the prepared image that it starts from
    base: str = ""  # or the image of tests/hostile
    seeds: range = range(0)  # share/damage holds the damage of each seed
    few: int = 0  # how many of them to use without ITREE_FULL=1
    prepares: bool = False  # only run to prepare an image
    machine: str = ""  # why it needs a virtual machine, not a kernel that is a program of the host
    config: str = ""  # an option that the kernel must have; our debug kernel has it
    slow: bool = False
    root: tuple[str, ...] = ()  # packages of the Debian root that its servers run in
    full: str = ""  # why it runs only with ITREE_FULL=1

    @property
    def fast_commit(self) -> bool:
        """Is that feature set? No tool sets it together with the itree; the runner does, as on an older volume."""
        return "fast_commit" in self.features.split(",")

    @property
    def on_debug(self) -> bool:
        """Does `make test` run it on the debug kernel?"""
        return self.group in ON_DEBUG or bool(self.config)

    @property
    def needs_qemu(self) -> bool:
        """Does `make test` always run it in QEMU? A kernel that is a program of the host has one processor."""
        return bool(self.machine) or self.cpus > 1

    def planned(self, full: bool) -> range:
        """The seeds of this run."""
        return self.seeds if full or not self.few else self.seeds[: self.few]

    def longest(self, full: bool) -> int:
        """Seconds after which it counts as hung."""
        return self.limit if full else min(self.limit, MOST)

    def results(self) -> list[str]:
        return [f"{self.id}[{p}]" if p else self.id for p in self.parts]


# Groups that `make test` runs on the debug kernel, a program of the host, and not in QEMU: its checks are for them.
ON_DEBUG = ("damaged", "faults")
# Factor for time limits there. It records the stack of each allocation, word by word: a few thousand casefolded
# encrypted names, with an allocation for each comparison, take minutes.
PATIENCE = 5
# For Case.machine
COMPAT = "a kernel that is a program of this host runs none of 32 bits"
UDEV = "a kernel that is a program of this host is started without udev"
# For Case.full
MILLION = "a directory of 1,000,000 names takes minutes to fill"
VARIANT = "one more variant of its group"
# The variants that `make test` runs of large groups, on two emulated processors within minutes: each feature of the
# file system and each kind of work once. The others have VARIANT as their reason.
BY_DEFAULT = {
    "matrix": "matrix-1-* matrix-10-* matrix-1000-* matrix-3000-* matrix-5000-* matrix-500-* matrix-20000-1k-bare "
    "matrix-20000-4k-csum-journal matrix-27000-* hash-*-signed links-1000-among-* collisions-1024",
    "big": "matrix-300k-4k-clean",
    "ops": "ops-4k ops-1k-bare ops-4k-nojournal ops-1k-casefold ops-1k-crypt-casefold ops-4k-inline ops-1k-fastcommit "
    "ops-4k-small-dirs reader-*",
    "scans": "over-1k-1000 over-many-1k over-small-* loop-*-3000 rm-loop-1k seek-1k seek-anew seek-small reader32-* "
    "stress-4k tiny-* rewind-* morph-1k hold-* collide-over dentries-* lookups-* noreuse reader-* "
    "longer-* grown-tree memorder-*",
    "space": "enospc-1k enospc-1k-names enospc-4k edquot-1k enospc-build-1024 reader-space-*",
    "crash": "crash-fastcommit-1k crash-journal-4k-logflush crash-orphan-file-1k checksums-1k-journal checksums-4k "
    "reader-fastcommit",
    "roundtrip": "roundtrip-kernel-first-1k roundtrip-tools-first-4k",
    "online": "online-build-4k online-build-1k-small online-build-fastcommit online-build-crypt-casefold "
    "online-busy-1k online-busy-fastcommit online-hammer online-scans online-power-fastcommit online-cancel "
    "online-rmdir online-refusals online-differs online-recursive online-collisions "
    "online-one-hash online-build-quota resume-* switch-1k switch-nojournal switch-inline switch-small switch-stale "
    "switch-listings switch-refusals switch-busy switch-power-1k arrange-* "
    "pack-4k pack-1k pack-half pack-nojournal pack-quota pack-bigalloc pack-crypt-casefold pack-largedir "
    "pack-listings-4k pack-listings-hash pack-listings-memory pack-listings-rebuild pack-busy-1k pack-busy-memory "
    "pack-power-1k pack-power-fastcommit pack-refusals pack-immutable pack-under-way pack-tool pack-nfs pack-slow-disk",
    "power": "power-mail-1k power-storms-journal power-online-1k",
}
# Cases that `make test` runs in QEMU besides those that need a machine, half of them at a time: some of each group on
# x86, its disks and its interrupts. All others run in a kernel that is a program of the host, in a sixth of the time
# that they take on an emulated processor.
IN_QEMU = (
    "matrix-1000-1k-crypt matrix-500-4k-crypt-casefold ops-4k seek-small over-small-4k tiny-small edquot-1k "
    "enospc-build-1024 flags old-kernel reader-fastcommit crash-orphan-file-1k "
    "reader-badtree-panic-unreadable-leaf-read reader-badtree-remount-ro-corrupt-leaf-write "
    "roundtrip-tools-first-4k online-differs online-power-fastcommit resume-1k power-online-1k shown-4096 "
    "neighbours-freeze reader-anew-150 reader-moved"
)
MOST = 900  # seconds that a case may take without ITREE_FULL=1
CASES: dict[str, Case] = {}


def case(id_: str, group: str, params: dict | None = None, **more):
    """Decorator: the function becomes a case (several, when stacked)."""

    def wrap(func):
        if id_ in CASES:
            raise ValueError(f"two cases named {id_}")
        new = CASES[id_] = Case(id_, group, func, params or {}, **more)
        if not any(fnmatch.fnmatchcase(id_, pattern) for pattern in BY_DEFAULT.get(group, "*").split()):
            new.full = new.full or VARIANT
        return func

    return wrap


def load() -> dict[str, Case]:
    for name in MODULES:
        importlib.import_module(f"kt.{name}")
    return CASES


def groups() -> list[str]:
    return sorted({c.group for c in load().values() if not c.prepares})


def results_of(group: str) -> list[str]:
    return [r for c in load().values() if c.group == group and not c.prepares for r in c.results()]


def case_of(result: str) -> Case:
    return load()[result.split("[")[0]]
