# SPDX-License-Identifier: GPL-2.0-only
"""What can be seen of ext4 file systems from outside: mounts, superblocks, flags of directories, the kernel."""

from __future__ import annotations

import array
import errno
import fcntl
import glob
import os
import re
import stat
import struct

SYSFS = "/sys/fs"
KERNEL_FEATURES = "/sys/fs/ext4/features"
# ext4, and the module with the itree that a host may have beside it
TYPES = ("ext4", "ext4itree")
MODULE_FEATURES = "/sys/fs/ext4itree/features"
MODULES = "/lib/modules"
MAGIC = 0xEF53
COMPAT_DIR_INDEX = 0x20
INCOMPAT_RECOVER = 0x4
INCOMPAT_EXTENTS = 0x40
RO_COMPAT_ITREE = 0x40000000

# As lsattr reads them; the argument's size in the number is that of a long, the value an int.
FS_IOC_GETFLAGS = 0x80006601 | struct.calcsize("l") << 16
FL_INDEX = 0x1000  # has an htree
FL_EXTENTS = 0x80000
FL_ITREE = 0x08000000  # has a valid tree
FL_INLINE = 0x10000000


class Ext4Error(Exception):
    """Says what is wrong with which path or device, for an admin to read."""


def kernel_feature():
    """Whether the running kernel knows itrees, and what to do if not: (bool, str)."""
    if os.path.exists(os.path.join(KERNEL_FEATURES, "itree")):
        return True, ""
    release = os.uname().release
    if not os.path.isdir(KERNEL_FEATURES):
        return False, (
            f"{KERNEL_FEATURES} does not exist: ext4 is not loaded into this kernel ({release}), or /sys is not "
            "mounted; try modprobe ext4"
        )
    return False, (
        f"the running kernel ({release}) does not know itrees: {KERNEL_FEATURES}/itree does not exist; boot a kernel "
        "with the itree patches or install the module ext4itree first"
    )


def module_installed(release):
    """Return whether the module ext4itree is installed for a kernel, so that a mount loads it."""
    try:
        with open(os.path.join(MODULES, release, "modules.dep"), encoding="utf-8") as handle:
            return any(re.search(r"(^|/)ext4itree\.ko(\.\w+)?:", line) for line in handle)
    except OSError:
        return False


def module_feature():
    """Return whether the running kernel has the module ext4itree: loaded or installed."""
    return os.path.exists(os.path.join(MODULE_FEATURES, "itree")) or module_installed(os.uname().release)


def feature():
    """Return whether this host can mount volumes with itrees, by whatever type, and what to do if not: (bool, str)."""
    return (True, "") if module_feature() else kernel_feature()


class Mount:
    """A line of /proc/self/mountinfo."""

    def __init__(self, line):
        left, right = line.rstrip("\n").split(" - ", 1)
        fields, rest = left.split(" "), right.split(" ")
        self.dev = fields[2]  # MAJOR:MINOR
        self.point = _unescape(fields[4])
        self.options = fields[5].split(",")
        self.fstype = rest[0]
        self.source = _unescape(rest[1])
        self.super_options = rest[2].split(",") if len(rest) > 2 else []

    @property
    def read_only(self):
        return "ro" in self.options or "ro" in self.super_options


def _unescape(text):
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def mounts():
    """All mounts that this process can see, in the order they were made."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as handle:
        return [Mount(line) for line in handle]


def dev_name(dev):
    """A st_dev or st_rdev as mountinfo writes it."""
    return f"{os.major(dev)}:{os.minor(dev)}"


def mount_of(path, table=None):
    """The mount that a path is on; None if it is on none that can be seen."""
    dev = dev_name(os.stat(path).st_dev)
    real = os.path.realpath(path)
    best = None
    for mount in mounts() if table is None else table:
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        # The last of those at the same place hides the others.
        if mount.dev == dev and inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def device_of(mount):
    """The path of the block device under a mount; Ext4Error if there is none."""
    for path in (mount.source, f"/dev/block/{mount.dev}"):
        try:
            st = os.stat(path)
        except OSError:
            continue
        if stat.S_ISBLK(st.st_mode) and dev_name(st.st_rdev) == mount.dev:
            return path
    raise Ext4Error(f"{mount.point}: found no block device {mount.dev} below it ({mount.source})")


class Superblock:
    """What is needed of an ext4 superblock. Its checksum is left to e2fsck."""

    def __init__(self, device):
        """Read it from a block device or image; Ext4Error if there is none."""
        try:
            with open(device, "rb") as handle:
                handle.seek(1024)
                raw = handle.read(1024)
        except OSError as err:
            raise Ext4Error(f"{device}: its superblock cannot be read: {err.strerror}") from err
        if len(raw) < 1024 or struct.unpack_from("<H", raw, 0x38)[0] != MAGIC:
            raise Ext4Error(f"{device}: no ext4 file system on it")
        self.compat, self.incompat, self.ro_compat = struct.unpack_from("<III", raw, 0x5C)
        self.block_size = 1024 << struct.unpack_from("<I", raw, 0x18)[0]
        self.uuid = raw[0x68:0x78].hex()
        self.errors = struct.unpack_from("<I", raw, 0x194)[0]

    @property
    def itree(self):
        return bool(self.ro_compat & RO_COMPAT_ITREE)

    def lacking(self):
        """Names of the features that an itree needs and this file system does not have."""
        need = (("dir_index", self.compat & COMPAT_DIR_INDEX), ("extent", self.incompat & INCOMPAT_EXTENTS))
        return [name for name, there in need if not there]


def users(device):
    """Block devices by which a device or image may be in use: their MAJOR:MINOR."""
    st = os.stat(device)
    if stat.S_ISBLK(st.st_mode):
        return [dev_name(st.st_rdev)]
    found = []
    for path in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as handle:
                same = os.path.samefile(handle.read().rstrip("\n"), device)
            with open(os.path.join(os.path.dirname(path), "..", "dev"), encoding="ascii") as handle:
                number = handle.read().strip()
        except OSError:
            continue
        if same:
            found.append(number)
    return found


def held(device):
    """Whether the kernel says that a block device is in use: mounted anywhere, swap, part of LVM or RAID."""
    if not stat.S_ISBLK(os.stat(device).st_mode):
        return False
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as err:
        if err.errno == errno.EBUSY:
            return True
        raise Ext4Error(f"{device}: cannot be opened: {err.strerror}") from err
    return False


class Volume:
    """A device or image with ext4 on it, and where it is mounted."""

    def __init__(self, name):
        """From the path of a device, an image or a mount point; Ext4Error says why not."""
        try:
            st = os.stat(name)
        except OSError as err:
            raise Ext4Error(f"{name}: {err.strerror}") from err
        table = mounts()
        if stat.S_ISDIR(st.st_mode):
            mount = mount_of(name, table)
            if mount is None or mount.point != os.path.realpath(name):
                raise Ext4Error(f"{name}: nothing is mounted there; give a mount point or a device")
            if mount.fstype not in TYPES:
                raise Ext4Error(f"{name}: {mount.fstype} is mounted there, not ext4")
            self.device = device_of(mount)
        else:
            self.device = name
        self.super = Superblock(self.device)
        self.mounts = [m for m in table if m.dev in users(self.device)]
        self.root = any(m.point == "/" for m in self.mounts)

    @property
    def switchable(self):
        """Whether the kernel can set and clear the feature while it is mounted, as it is."""
        return bool(self.mounts) and all(
            not m.read_only and os.path.exists(os.path.join(SYSFS, m.fstype, "features", "itree_switch"))
            for m in self.mounts
        )

    def info(self):
        """As a dictionary, for the answer of a module."""
        free = None
        if self.mounts:
            fs = os.statvfs(self.mounts[0].point)
            free = round(100.0 * fs.f_bavail / fs.f_blocks, 1) if fs.f_blocks else 0.0
        return {
            "device": self.device,
            "itree": self.super.itree,
            "lacking": self.super.lacking(),
            "block_size": self.super.block_size,
            "mounted_at": [m.point for m in self.mounts],
            "read_only": any(m.read_only for m in self.mounts),
            "type": self.mounts[0].fstype if self.mounts else "",
            "root": self.root,
            "switchable": self.switchable,
            "errors": self.super.errors,
            "free_percent": free,
        }


def flags(fd):
    """The flags that lsattr shows, of an open directory."""
    buf = array.array("i", [0])
    fcntl.ioctl(fd, FS_IOC_GETFLAGS, buf, True)
    return buf[0] & 0xFFFFFFFF


def why_no_tree(bits):
    """Why a directory with these flags cannot have a tree; empty if it can."""
    if bits & FL_INLINE:
        return "it is kept in its inode"
    if not bits & FL_EXTENTS:
        return "it has a block map instead of extents"
    if not bits & FL_INDEX:
        return "it has no htree; e2fsck -fD makes htrees"
    return ""
