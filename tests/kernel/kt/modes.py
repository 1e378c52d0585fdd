# SPDX-License-Identifier: GPL-2.0-only
"""Mount options, flags, counters; file systems without the feature; other kernels."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import struct

from kt.guest import EXT4_IOC_SHUTDOWN, FL_INDEX, FL_ITREE, Guest
from kt.registry import case

SIZES = {"few": (12, "short"), "block": (90, "skew"), "htree": (700, "skew"), "tree": (6000, "mixed")}


def many_sizes(g: Guest) -> None:
    g.tmp.mkdir(parents=True, exist_ok=True)
    for name, (n, style) in SIZES.items():
        g.t(
            "fill",
            "--dir",
            g.path(name),
            "--model",
            str(g.share / f"{name}.model"),
            "--n",
            n,
            "--names",
            style,
            "--mixed",
        )


def dump(g: Guest, tag: str, api: str = "64") -> dict[str, str]:
    found = {}
    for name in SIZES:
        # What the host needs goes to the share, which is slow.
        out = (g.share if tag == "guest" else g.tmp) / f"{name}.{tag}"
        g.t("dump", "--dir", g.path(name), "--out", out, "--api", api)
        found[name] = out.read_text()
    return found


def feature_off(g: Guest) -> None:
    """A file system without the feature: as on any other kernel (the host compares), byte for byte."""
    g.mount()
    many_sizes(g)
    g.again()
    dump(g, "guest")
    for name in SIZES:
        d = g.path(name)
        g.equal(g.has_tree(d), False, f"{name}: itree flag")
        g.equal(g.segment(d), [], f"{name}: blocks in the segment")
        g.t("list", "--dir", d, "--model", g.share / f"{name}.model")
        g.t("list", "--dir", d, "--model", g.share / f"{name}.model", "--api", "32")
    for option in ("noitree", "itree"):
        # There is no tree to ignore: the option may be refused, but must not change the order.
        if not g.run("mount", "-o", f"remount,{option}", g.dev, g.mnt, check=False).returncode:
            dump(g, f"remount-{option}")
            for name in SIZES:
                want = (g.share / f"{name}.guest").read_text()
                g.want((g.tmp / f"{name}.remount-{option}").read_text() == want, f"{name}: other order with {option}")
    g.equal({g.counter(c) for c in ("builds", "inserts", "drops")} - {0, -1}, set(), "counters that moved")


for _id, _features, _bs in (("4k", "", 4096), ("1k-bare", "^metadata_csum,^has_journal", 1024)):
    case(
        f"feature-off-{_id}", "modes", {}, itree=False, features=_features, mkfs=("-b", str(_bs)), size="256M",
        host="same_order_as_host", cost=15,
    )(feature_off)  # fmt: skip


def names_of(dumps: dict[str, str]) -> dict[str, list[str]]:
    """Dumps without positions, which also tell which listing they are of."""
    return {name: [line.split(" ", 1)[1] for line in text.splitlines()] for name, text in dumps.items()}


def noitree(g: Guest) -> None:
    """noitree gives the hash order of other kernels (the host compares), and back. Positions identify the order."""
    g.mount()
    options = pathlib.Path("/proc/mounts")

    def shown() -> bool:
        line = [x for x in options.read_text().splitlines() if f" {g.mnt} " in x][0]
        return "noitree" in line.split()[3].split(",")

    g.equal(shown(), False, "noitree in /proc/mounts")
    many_sizes(g)
    ordered = names_of(dump(g, "itree"))
    hashed32 = dump(g, "hash32", "32") if g.compat else {}
    for name in SIZES:
        g.listing(g.path(name), g.share / f"{name}.model")
    g.want_tree(g.path("tree"))
    g.remount("noitree")
    g.equal(shown(), True, "noitree in /proc/mounts after remount")
    first = dump(g, "noitree")
    g.want(names_of(first)["tree"] != ordered["tree"], "noitree changes nothing")
    g.again("noitree")
    g.equal(shown(), True, "noitree in /proc/mounts")
    g.want_tree(g.path("tree"))
    g.equal(dump(g, "guest") == first, True, "the same order after mount -o noitree")
    if g.compat:
        same = dump(g, "noitree32", "32") == hashed32
        g.want(same, "the order of 32-bit readers depends on the option")
    g.remount("itree")
    g.equal(shown(), False, "noitree in /proc/mounts after remount,itree")
    g.equal(names_of(dump(g, "back")) == ordered, True, "inode order after remount,itree")
    for name in SIZES:
        g.listing(g.path(name), g.share / f"{name}.model")


for _id, _features, _bs in (("4k", "", 4096), ("1k-bare", "^metadata_csum,^has_journal", 1024)):
    case(
        f"noitree-{_id}", "modes", {}, features=_features, mkfs=("-b", str(_bs)), size="256M",
        host="same_names_as_host", cost=15,
    )(noitree)  # fmt: skip


def old_kernel(g: Guest) -> None:
    """Fills and ages; the host's own kernel then mounts it read-only, lists it, refuses to write."""
    g.mount()
    many_sizes(g)
    g.want_tree(g.path("tree"))
    g.t("age", "--dir", g.path("tree"), "--model", g.share / "tree.model", "--mixed", "--names", "mixed")
    g.listing(g.path("tree"), g.share / "tree.model")


case("old-kernel", "modes", {}, mkfs=("-b", "4096"), size="256M", host="old_kernel_reads")(old_kernel)


def flags(g: Guest) -> None:
    """chattr neither sets nor clears the flag; nothing inherits it."""
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 2000, "--names", "mixed")
    d = g.path()
    g.want_tree(d)
    os.mkdir(g.path("small"))
    for path in (g.path("small"),):
        before = g.flags(path)
        g.set_flags(path, before | FL_ITREE)
        g.equal(g.flags(path), before, "flags after an attempt to set the flag")
    before = g.flags(d)
    g.set_flags(d, before & ~FL_ITREE)
    g.equal(g.flags(d), before, "flags after an attempt to clear the flag")
    g.equal(g.set_flags(d, before), 0, "setting what is set already")
    # Another flag can be changed on a directory that has a tree.
    for change in (0x80, 0x40, 0x10000):  # A, d, D
        g.equal(g.set_flags(d, before | change), 0, f"chattr {change:x}")
        g.equal(g.flags(d), before | change, "flags")
        g.equal(g.set_flags(d, before), 0, "chattr back")
        g.equal(g.flags(d), before, "flags")
    os.mkdir(g.path("d/sub"))
    g.equal(g.has_tree(g.path("d/sub")), False, "flag of a new subdirectory")
    fd = os.open(g.path("d/file"), os.O_CREAT | os.O_RDWR)
    os.close(fd)
    g.equal(g.has_tree(g.path("d/file")), False, "flag of a new file")
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR)
    flag = struct.unpack("I", fcntl.ioctl(fd, 0x80086601, b"\0" * 4)[:4])[0]
    g.equal(flag & FL_ITREE, 0, "flag of an O_TMPFILE")
    os.close(fd)
    before = g.flags(g.path("d/file"))
    g.set_flags(g.path("d/file"), before | FL_ITREE)
    g.equal(g.flags(g.path("d/file")), before, "flags of a file after an attempt to set the flag")
    g.equal(bool(g.flags(d) & FL_INDEX), True, "htree flag")
    out = g.run(g.tool("lsattr"), "-d", d).stdout
    g.stats["lsattr_ok"] = int(bool(out))
    # FS_IOC_FSSETXATTR is another way to set flags.
    g.run(g.tool("chattr"), "+A", d)
    g.want_tree(d)
    g.again()
    g.want_tree(d)
    os.unlink(g.path("d/file"))
    os.rmdir(g.path("d/sub"))
    g.listing()


case("flags", "modes", {}, mkfs=("-b", "4096"), size="128M")(flags)


def blocks_come_back(g: Guest) -> None:
    """rmdir and rm -r of directories with trees give all blocks back."""
    g.mount()
    os.mkdir(g.path("warm"))
    os.rmdir(g.path("warm"))
    os.sync()
    before = os.statvfs(g.mnt)
    for how in ("rmdir", "rm -r", "open"):
        g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 3000, "--names", "mixed", "--mixed")
        g.want_tree(g.path())
        segment = len(g.tree_blocks(g.path()))
        g.want(segment > 3, f"{segment} tree blocks")
        g.listing()
        fd = os.open(g.path(), os.O_RDONLY)
        if how == "rm -r":
            g.run("rm", "-r", g.path(), timeout=300)
        else:
            g.t("empty", "--dir", g.path(), "--model", g.model(), "--n", 0, *g.order)
            os.rmdir(g.path())
        if how == "open":
            # An open directory that is gone: empty, no error, no crash.
            g.equal(os.listdir(fd), [], "names in a removed directory")
        os.close(fd)
        os.unlink(g.model())
        os.sync()
        after = os.statvfs(g.mnt)
        g.equal(after.f_bfree, before.f_bfree, f"free blocks after {how}")
        g.equal(after.f_ffree, before.f_ffree, f"free inodes after {how}")


for _bs in (1024, 4096):
    case(f"blocks-come-back-{_bs}", "modes", {}, mkfs=("-b", str(_bs)), size="256M", cost=15)(blocks_come_back)


def orphan(g: Guest) -> None:
    """A directory removed while open, then a crash: orphan cleanup frees tree and all."""
    g.mount()
    os.sync()
    before = os.statvfs(g.mnt)
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 3000, "--names", "mixed")
    g.want_tree(g.path())
    fd = os.open(g.path(), os.O_RDONLY)
    g.t("empty", "--dir", g.path(), "--model", g.model(), *g.order)
    os.rmdir(g.path())
    os.sync()
    fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", 2))
    os.close(fd)
    g.again()
    os.sync()
    g.equal(os.statvfs(g.mnt).f_bfree, before.f_bfree, "free blocks after orphan cleanup")
    g.equal(os.statvfs(g.mnt).f_ffree, before.f_ffree, "free inodes after orphan cleanup")


case("orphan", "modes", {}, mkfs=("-b", "1024"), size="256M")(orphan)


def boundary(g: Guest) -> None:
    """Any operation that appends the 16th block builds the tree; counters and tracepoints report it."""
    feature = g.sysfs / "features" / "itree"
    g.want(feature.exists(), f"{feature} is missing")
    g.mount()
    bsize = os.statvfs(g.mnt).f_bsize
    trace = pathlib.Path("/sys/kernel/tracing")
    event = trace / "events" / g.type / "ext4_itree_build" / "enable"
    if g.want(event.exists(), "no tracepoint ext4_itree_build"):
        event.write_text("1")
    g.want((trace / "events" / g.type / "ext4_itree_drop").exists(), "no tracepoint ext4_itree_drop")
    os.mkdir(g.path("from"))
    for how in ("mknod", "mkdir", "symlink", "link", "rename", "exdir"):
        d = g.path(how)
        os.mkdir(d)
        builds, number = g.counter("builds"), 0
        os.mknod(g.path(f"from/{how}"))
        while os.stat(d).st_size < 16 * bsize and number < 4000:
            name = f"{d}/{number:0240d}"
            if how == "mknod":
                os.mknod(name)
            elif how == "mkdir":
                os.mkdir(name)
            elif how == "symlink":
                os.symlink("x", name)
            elif how == "link":
                os.link(g.path("from/link"), name)
            else:
                os.mknod(g.path("from/x"))
                os.rename(g.path("from/x"), name)
            if os.stat(d).st_size < 16 * bsize and g.has_tree(d):
                g.fail(f"{how}: a tree at {os.stat(d).st_size // bsize} blocks")
                break
            number += 1
        g.want_tree(d)
        g.equal(g.counter("builds") - builds, 1, f"{how}: trees built")
        g.want(bool(g.segment(d)), f"{how}: no blocks in the segment")
        g.equal(min(g.tree_blocks(d), default=0), 0x80000000, f"{how}: first block of the segment")
        g.t("self", "--dir", d, *g.order)
    if event.exists():
        event.write_text("0")
        lines = [x for x in (trace / "trace").read_text().splitlines() if "ext4_itree_build" in x and "#" not in x[:1]]
        g.want(len(lines) >= 6, f"{len(lines)} lines of ext4_itree_build in the trace")
    before = g.counters()
    # Creates, links and deletes move the counters.
    d = g.path("mknod")
    for number in range(100):
        os.mknod(f"{d}/c{number}")
    mid = g.counters()
    g.equal(mid["inserts"] - before["inserts"], 100, "itree_inserts after 100 creates")
    for number in range(100):
        os.unlink(f"{d}/c{number}")
    g.equal(g.counters()["deletes"] - mid["deletes"], 100, "itree_deletes after 100 unlinks")
    g.equal(g.counters()["drops"], 0, "itree_drops")
    g.again()
    for how in ("mknod", "mkdir", "symlink", "link", "rename"):
        g.want_tree(g.path(how))
        g.t("self", "--dir", g.path(how), *g.order)
    # A tree stays when its directory shrinks, as the directory's blocks do.
    for name in os.listdir(d)[20:]:
        os.unlink(f"{d}/{name}")
    g.t("self", "--dir", d, *g.order)


for _bs in (1024, 4096):
    case(f"boundary-{_bs}", "modes", {}, mkfs=("-b", str(_bs)), size="128M", cost=15)(boundary)


def read_only(g: Guest) -> None:
    """Read-only mounts read trees; nothing is written."""
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 2000, "--names", "mixed", "--mixed")
    g.want_tree(g.path())
    g.umount()
    before = g.run("sha256sum", g.dev).stdout
    for options in ("ro", "ro,noload", "ro,noitree"):
        g.mount(options)
        order = [] if "noitree" in options else g.order
        g.t("list", "--dir", g.path(), "--model", g.model(), *order)
        try:
            os.mknod(g.path("d/new"))
            g.fail(f"{options}: mknod works")
        except OSError as err:
            g.equal(err.errno, errno.EROFS, f"{options}: errno")
        g.umount()
        g.equal(g.run("sha256sum", g.dev).stdout, before, f"{options}: the disk's contents")


case("read-only", "modes", {}, features="^has_journal", mkfs=("-b", "4096"), size="64M")(read_only)


def rename_tree(g: Guest) -> None:
    """Directories with trees are moved: .. changes, the tree stays."""
    g.mount()
    for name in ("a", "b", "a/t", "b/u"):
        os.mkdir(g.path(name))
    for name in ("a/t", "b/u"):
        g.t("fill", "--dir", g.path(name), "--model", g.model(name[2:]), "--n", 2000, "--names", "mixed")
        g.want_tree(g.path(name))
    os.rename(g.path("a/t"), g.path("b/t"))
    g.listing(g.path("b/t"), g.model("t"))
    os.rename(g.path("b/t"), g.path("b/u/t"))
    g.listing(g.path("b/u/t"), g.model("t"))
    g.equal(os.stat(g.path("b/u/t/..")).st_ino, os.stat(g.path("b/u")).st_ino, "inode of ..")
    os.rename(g.path("b/u/t"), g.path("t"))
    g.listing(g.path("t"), g.model("t"))
    g.listing(g.path("b/u"), g.model("u"))
    g.again()
    g.want_tree(g.path("t"))
    g.want_tree(g.path("b/u"))
    g.listing(g.path("t"), g.model("t"))
    g.listing(g.path("b/u"), g.model("u"))
    g.equal(g.counter("drops"), 0, "trees dropped")


case("rename-tree", "modes", {}, mkfs=("-b", "4096"), size="128M")(rename_tree)


def root_dir(g: Guest) -> None:
    """The root directory and lost+found are directories, too."""
    g.mount()
    for number in range(3000):
        os.mknod(g.path(f"{number:0120d}"))
    g.want_tree(str(g.mnt))
    g.t("self", "--dir", g.mnt, *g.order)
    g.again()
    g.t("self", "--dir", g.mnt, *g.order)
    for number in range(3000):
        os.unlink(g.path(f"{number:0120d}"))
    g.equal(os.listdir(g.mnt), ["lost+found"], "names left")


case("root-dir", "modes", {}, mkfs=("-b", "4096"), size="128M")(root_dir)
