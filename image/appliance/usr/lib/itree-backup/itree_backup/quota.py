# SPDX-License-Identifier: GPL-2.0-only
"""Limits of a host on the volume, enforced by the file system's project quota.

The directory of a host with limits has a project ID of its own, which
everything created below inherits. So a host fills its share and no more. The
file system allows hard links only within a project, where snapshots share files.

Whatever a client can make grow belongs to the project: snapshots, partial
files, lists of names. Status and records do not, so that a run that reached a
limit can still report it.
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import struct
import subprocess

from .errors import SPACE, BackupError
from .store import MARKER, Store, Tree, on_volume

FIRST = 1000  # project IDs below are left to the admin
# struct fsxattr: flags, extent size, number of extents, project, CoW extent size, padding.
ATTRIBUTES = struct.Struct("=5I8x")
FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x801C581F, 0x401C5820
FS_XFLAG_PROJINHERIT = 0x200
CAP_SYS_RESOURCE, PR_CAPBSET_DROP = 24, 24
LEAST = 1  # percent of a limit; with less left, a run is bound to fail
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass
class Usage:
    """How much of its limits a host uses. A limit of 0 means none; the number used is then unknown, and also 0."""

    limit: int
    used: int
    inode_limit: int
    inodes: int

    @property
    def percent(self):
        """The percentage used of the limit that is closer."""
        pairs = ((self.used, self.limit), (self.inodes, self.inode_limit))
        return max(100.0 * used / limit for used, limit in pairs if limit)


def size_of(number):
    """A number of bytes for people, in units of 1,024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}" if unit != "B" else f"{number} B"
        number /= 1024
    return f"{number:.3g} TiB"


def text_of(usage):
    """A Usage in words."""
    size = f"{size_of(usage.used)} of {size_of(usage.limit)}" * bool(usage.limit)
    inodes = f"{usage.inodes} of {usage.inode_limit} inodes" * bool(usage.inode_limit)
    return " and ".join(filter(None, (size, inodes)))


def attributes(fd):
    """(flags, project) of an open file or directory; None if its file system has no projects."""
    try:
        flags, _, _, project, _ = ATTRIBUTES.unpack(fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(ATTRIBUTES.size)))
    except OSError as err:
        if err.errno in (errno.ENOTTY, errno.EOPNOTSUPP):
            return None
        raise
    return flags, project


def project_of(path):
    """The project of a directory; 0 if it has none."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return (attributes(fd) or (0, 0))[1]
    finally:
        os.close(fd)


def join(fd, project, inherit=False):
    """Put an open file or directory into a project; inherit: also what is created in it. Raises OSError."""
    flags, now = attributes(fd) or (0, 0)
    new = flags | FS_XFLAG_PROJINHERIT if inherit else flags
    if (new, project) != (flags, now):
        fcntl.ioctl(fd, FS_IOC_FSSETXATTR, ATTRIBUTES.pack(new, 0, 0, project, 0))


def join_path(path, project, inherit=False):
    """join() by path, which must not be one that a client chose."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        join(fd, project, inherit)
    finally:
        os.close(fd)


def share(store, path):
    """Charge a file or directory beside the snapshots to the host's project, if it has one."""
    project = project_of(store.meta / "parts")
    if project:
        join_path(path, project, path.is_dir())


def limits_of(space, whole):
    """(bytes, inodes) that one statvfs result allows; 0, no limit, where that is the whole volume."""
    size = space.f_blocks * space.f_frsize if space.f_blocks < whole.f_blocks else 0
    return size, space.f_files if space.f_files < whole.f_files else 0


def usage(store):
    """The Usage of a host; None if no limit is in force. Needs no privileges."""
    # For a directory whose project is inherited, the file system reports the project's limits and usage.
    own, whole = os.statvfs(store.path), os.statvfs(store.base.volume / MARKER)
    size, inodes = limits_of(own, whole)
    if not size and not inodes:
        return None
    return Usage(size, (own.f_blocks - own.f_bfree) * own.f_frsize * bool(size),
                 inodes, (own.f_files - own.f_ffree) * bool(inodes))  # fmt: skip


def in_force(store, limits):
    """Whether a host has exactly these limits; one that is larger than the volume is as good as none."""
    own, whole = os.statvfs(store.path), os.statvfs(store.base.volume / MARKER)
    blocks = limits.size // own.f_frsize
    wanted = (
        min(blocks or whole.f_blocks, whole.f_blocks) * own.f_frsize,
        min(limits.inodes or whole.f_files, whole.f_files),
    )
    return (own.f_blocks * own.f_frsize, own.f_files) == wanted


def settle(store, limits):
    """Set a host's limits. Its lock must be held. Raises BackupError if they are not in force afterwards.

    Snapshots from before the first limit join the project. The directory of the host joins last, so that a later
    call resumes what was interrupted.
    """
    if in_force(store, limits):
        return
    try:
        project = project_of(store.meta / "parts") or reserve(store)
        if project_of(store.path) != project:
            print(f"{store.name}: counting what is there for its quota", flush=True)
            take_in(store, project)
    except OSError as err:
        if err.errno == errno.EPERM:
            raise BackupError(f"{store.name}: locked snapshots cannot be counted for a new [quota]: set [lock] days "
                              f"= 0, run 'itree-backup lock {store.name}', and set it back after the next run") from err
        if err.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
            raise
        raise BackupError(f"{store.base.volume} has no project quotas, which [quota] of {store.name} needs. "
                          + ADVICE.format(volume=store.base.volume)) from err  # fmt: skip
    set_limits(store, project, limits)
    if not in_force(store, limits):
        raise BackupError(f"{store.base.volume} does not enforce project quotas, which [quota] of {store.name} needs. "
                          + ADVICE.format(volume=store.base.volume))  # fmt: skip


ADVICE = (
    "On ext4, unmount it, run 'e2fsck -fp DEVICE' and 'tune2fs -O project,quota -Q prjquota -E mount_opts=prjquota "
    "DEVICE', and mount it again (findmnt {volume} names the device)"
)


def reserve(store):
    """Give a free project ID to the directory of a host's partial files, which joins the project first."""
    with open(store.base.volume / MARKER) as handle:
        # Two hosts that are set up at the same time must not get the same ID.
        fcntl.flock(handle, fcntl.LOCK_EX)
        taken = [FIRST]
        for name in on_volume(store.base):
            with contextlib.suppress(FileNotFoundError):
                taken.append(project_of(Store(store.base, name).meta / "parts"))
        project = max(taken) + 1
        join_path(store.meta / "parts", project, True)
    return project


def take_in(store, project):
    """Move everything that a host has into a project."""
    # Symbolic links and devices cannot change their project. The next run creates them again instead of linking.
    trees = [path for path in store.path.iterdir() if path != store.meta]
    for top in (store.meta / "parts", *trees):
        join_path(top, project, True)
        with contextlib.closing(Tree(top)) as tree:
            for path, entry in tree.walk():
                directory = entry.is_dir(follow_symlinks=False)
                if directory or entry.is_file(follow_symlinks=False):
                    fd = tree.open(path)
                    try:
                        join(fd, project, directory)
                    finally:
                        os.close(fd)
    for path in store.meta.glob("*.sums"):
        join_path(path, project)
    join_path(store.path, project, True)


def set_limits(store, project, limits):
    """Have the kernel enforce limits for a project. Raises BackupError."""
    # Blocks of 1 KiB, inodes. No soft limits: they may be exceeded for some days.
    argv = ["setquota", "-P", str(project), "0", str(limits.size // 1024), "0", str(limits.inodes),
            str(store.base.volume)]  # fmt: skip
    try:
        res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BackupError(f"[quota] of {store.name} needs setquota(8): install the package quota") from None
    if res.returncode:
        raise BackupError(
            f"{store.name}: {' '.join(argv)} ended with {res.returncode}: {' '.join(res.stderr.split())}. If the quota "
            f"was changed just now, 'itree-backup prepare {store.name}' sets it. "
            + ADVICE.format(volume=store.base.volume)
        )


def obey():
    """Make limits bind the programs that this one starts, for runs by hand as root. The unit lacks the capability."""
    _LIBC.prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0)


def is_full(store):
    """Whether a host has no room for one more run."""
    found = usage(store)
    return found is not None and found.percent > 100 - LEAST


def check(store):
    """Raise BackupError(SPACE) if a host has no room for one more run."""
    if is_full(store):
        raise BackupError(f"{store.name}: {text_of(usage(store))} are used. Nothing was started. {MAKE_ROOM}", SPACE)


MAKE_ROOM = (
    "Other hosts are not affected. Exclude what has grown on the client, keep fewer snapshots, run 'itree-backup "
    "discard', or set a larger [quota]"
)


def exceeded(where):
    """The BackupError of a run that reached the limit of its host."""
    return BackupError(
        f"{where}: the quota of this host ([quota]) was used up in mid-run. What was fetched is kept and used by the "
        f"next run; the good snapshots are as they were. {MAKE_ROOM}",
        SPACE,
    )
