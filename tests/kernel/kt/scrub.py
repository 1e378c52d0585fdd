# SPDX-License-Identifier: GPL-2.0-only
"""The installed e2scrub checks trees on LVM snapshots of a mounted volume."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import threading
import time

from kt.guest import FL_EXTENTS, FL_INDEX, Failed, Guest
from kt.registry import UDEV, case
from kt.tools import exact

GROUP, VOLUME = "itreevg", "mail"
# This disk alone, none of LVM's daemons, nothing kept in /etc. udev runs, as on any machine: lsblk asks it.
LVM_CONF = """
devices { use_devicesfile = 0  filter = [ "a|^%s$|", "r|.*|" ] }
activation { monitoring = 0 }
global { use_lvmpolld = 0  event_activation = 0 }
backup { backup = 0  archive = 0 }
"""


@contextlib.contextmanager
def volume(g: Guest, mib: int):
    """Context: make a logical volume on the guest's disk, which becomes the case's device."""
    if not shutil.which("lvcreate"):
        raise Failed("lvcreate is not installed: run `make deps`")
    g.tmp.mkdir(parents=True, exist_ok=True)
    (g.tmp / "lvm.conf").write_text(LVM_CONF % g.dev)
    os.environ["LVM_SYSTEM_DIR"] = str(g.tmp)
    os.environ["LVM_SUPPRESS_FD_WARNINGS"] = "1"
    disk, name = g.dev, g.disk
    try:
        g.run("vgcreate", "-y", GROUP, disk)
        g.run("lvcreate", "-y", "-Wn", "-Zn", "-L", f"{mib}m", "-n", VOLUME, GROUP)
        g.dev = f"/dev/{GROUP}/{VOLUME}"
        g.disk = os.path.basename(os.path.realpath(g.dev))
        yield
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        g.run("vgchange", "-an", GROUP, check=False)
        g.dev, g.disk = disk, name


@contextlib.contextmanager
def installed(g: Guest):
    """Context: install our e2fsck and tune2fs in /sbin, where e2scrub runs them."""
    done = []
    try:
        for name in ("e2fsck", "tune2fs", "dumpe2fs"):
            there = pathlib.Path("/sbin", name).resolve()
            g.run("mount", "--bind", g.tool(name), there)
            done.append(there)
        yield
    finally:
        for there in done:
            g.run("umount", there, check=False)


def scrub(g: Guest, want: int, words: str) -> str:
    """Run e2scrub; return its exit code and a line of its output; check that no snapshot is left."""
    res = g.run(g.tool("e2scrub"), g.mnt, check=False, timeout=300)
    output = res.stdout + res.stderr
    g.equal(res.returncode, want, f"exit code of e2scrub, which says {output[-700:]!r}")
    g.want(words in output, f"e2scrub does not say {words!r} but {output[-700:]!r}")
    g.equal(g.run("lvs", "--noheadings", "-o", "lv_name", GROUP).stdout.split(), [VOLUME], "logical volumes left")
    return output


def state(g: Guest) -> str:
    head = g.run(g.tool("dumpe2fs"), "-h", g.dev).stdout
    return re.search(r"^Filesystem state: +(.*)$", head, re.M)[1]


def at_work(g: Guest, stop: threading.Event) -> None:
    """Create, rename and delete in the directory with the tree until stopped."""
    number = 0
    while not stop.is_set():
        path = g.path(f"d/work-{number % 300:04}-{'n' * 60}")
        pathlib.Path(path).write_text(str(number))
        os.rename(path, f"{path}-moved")
        if number % 3:
            os.unlink(f"{path}-moved")
        number += 1
        # The guest has one processor, which the scrub needs, too.
        time.sleep(0.01)
    g.stats["changes"] = number


def e2scrub(g: Guest) -> None:
    with volume(g, 160), installed(g):
        g.run(g.tool("mke2fs"), "-q", "-F", "-t", "ext4", "-O", "itree", "-b", "1024", g.dev)
        g.run("udevadm", "trigger", "--settle", "--action=change", os.path.realpath(g.dev))
        g.mount()
        for name in ("d", "e"):
            g.t("fill", "--dir", g.path(name), "--model", g.model(name), "--n", 1800, "--names", "mixed")
            g.want_tree(g.path(name))
        # A good volume, mounted, with an open unlinked file and concurrent changes.
        fd = os.open(g.path("d/gone"), os.O_CREAT | os.O_RDWR)
        os.unlink(g.path("d/gone"))
        stop = threading.Event()
        worker = threading.Thread(target=at_work, args=(g, stop))
        worker.start()
        try:
            scrub(g, 0, "Scrub succeeded")
        finally:
            stop.set()
            worker.join()
        os.close(fd)
        g.want(g.stats.get("changes", 0) > 20, f"{g.stats.get('changes')} changes during the scrub")
        g.equal(state(g), "clean", "state after a scrub that succeeded")
        # A missing tree is not damage.
        g.run(g.tool("e4itree"), "drop", g.path("e"))
        g.equal(g.has_tree(g.path("e")), False, "flag after e4itree drop")
        scrub(g, 0, "Scrub succeeded")
        # Nor is half a tree, as a snapshot during a build has it.
        g.run(g.tool("e4itree"), "build", g.path("e"))
        g.umount()
        g.run(g.tool("debugfs"), "-w", "-R", f"sif /e flags {FL_INDEX | FL_EXTENTS:#x}", g.dev)
        g.mount()
        g.equal((g.has_tree(g.path("e")), bool(g.segment(g.path("e")))), (False, True), "flag, blocks of half a tree")
        scrub(g, 0, "Scrub succeeded")
        g.equal(state(g), "clean", "state after a scrub beside a build")
        # A wrong tree is, even if nothing else is affected.
        g.umount()
        for damage in ("itree_poke /d 1 16 0b000000", "itree_poke -c /d 1 40 ffff"):
            g.run(g.tool("debugfs"), "-w", "-R", damage, g.dev)
            g.mount()
            output = scrub(g, 6, "Scrub FAILED due to corruption")
            g.want("tree of directory inode" in output, f"nothing of a tree in {output[-700:]!r}")
            g.want("error" in state(g), f"state after a scrub that failed: {state(g)}")
            g.umount()
            # As it asks: what e2fsck did to the snapshot, it does to the volume.
            res = g.run(g.tool("e2fsck"), "-fy", g.dev, check=False)
            g.equal(res.returncode, 1, f"e2fsck -fy after {damage}")
            exact(g)
        g.mount()
        scrub(g, 0, "Scrub succeeded")
        g.equal(g.counter("drops"), 0, "trees dropped")
        g.t("self", "--dir", g.path(), *g.order)
        g.want_tree(g.path())
        g.fsck()
        exact(g)


case("e2scrub", "tools", {}, size="512M", fsck="none", cost=30, limit=400, machine=UDEV)(e2scrub)
