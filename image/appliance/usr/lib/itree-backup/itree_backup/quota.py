# SPDX-License-Identifier: GPL-2.0-only
"""The limits of a host on the volume, which the file system's project quota enforces.

The directory of a host with limits has a project ID of its own, which all that
is made below it inherits. So one host fills its share and no more. The file
system links files within a project alone, which is where snapshots share them.

What a client can make grow belongs to the project: snapshots, beginnings of
files, lists of names. Status and records do not, so that a run that reached a
limit can still say so.
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
LEAST = 1  # percent of a limit; with less than that left a run would fail for certain
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass
class Usage:
    """What a host with limits takes. A limit of 0 is none, and then the number used is not known: 0 too."""

    limit: int
    used: int
    inode_limit: int
    inodes: int

    @property
    def percent(self):
        """How much of the limit that is closer is used."""
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
    """Give an open file or directory to a project; inherit: what is made in the directory, too. Raises OSError."""
    flags, now = attributes(fd) or (0, 0)
    new = flags | FS_XFLAG_PROJINHERIT if inherit else flags
    if (new, project) != (flags, now):
        fcntl.ioctl(fd, FS_IOC_FSSETXATTR, ATTRIBUTES.pack(new, 0, 0, project, 0))


def join_path(path, project, inherit=False):
    """join() by a path that no client chose."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        join(fd, project, inherit)
    finally:
        os.close(fd)


def share(store, path):
    """Have a file or directory beside the snapshots count as the host's, if the host has a project."""
    project = project_of(store.meta / "parts")
    if project:
        join_path(path, project, path.is_dir())


def limits_of(space, whole):
    """(bytes, inodes) that one statvfs result allows, 0 where it is all that there is on the volume."""
    size = space.f_blocks * space.f_frsize if space.f_blocks < whole.f_blocks else 0
    return size, space.f_files if space.f_files < whole.f_files else 0


def usage(store):
    """The Usage of a host, for which no rights are needed; None if it has no limit that is in force."""
    # Of a directory that passes its project on, the file system tells what the project has.
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
    """Give a host its limits. Its lock must be held. Raises BackupError if they do not hold then.

    Snapshots from before there were limits become the project's; the directory of the host comes last, and a later
    call goes on with what was interrupted.
    """
    if in_force(store, limits):
        return
    try:
        project = project_of(store.meta / "parts") or reserve(store)
        if project_of(store.path) != project:
            print(f"{store.name}: counting what is there for its quota", flush=True)
            take_in(store, project)
    except OSError as err:
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
    """Give the beginnings of a host's files, the first of what belongs to its project, a project ID that is free."""
    with open(store.base.volume / MARKER) as handle:
        # Of two hosts that are set up together, the other comes next.
        fcntl.flock(handle, fcntl.LOCK_EX)
        taken = [FIRST]
        for name in on_volume(store.base):
            with contextlib.suppress(FileNotFoundError):
                taken.append(project_of(Store(store.base, name).meta / "parts"))
        project = max(taken) + 1
        join_path(store.meta / "parts", project, True)
    return project


def take_in(store, project):
    """Give all that a host has to a project."""
    # Symbolic links and devices cannot change their project. The next run makes them again instead of linking.
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
    # Blocks of 1 KiB, inodes; the soft limits, which may be exceeded for some days, are none.
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
    """Have no program that this one starts pass over limits, as root may by hand. A unit has no such right."""
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
    "Other hosts go on. Find out what has grown on the client and exclude it; keep fewer snapshots, 'itree-backup "
    "discard', or a larger [quota]"
)


def exceeded(where):
    """The BackupError of a run that came to the limit of its host."""
    return BackupError(
        f"{where}: the quota of this host ([quota]) was used up in mid-run. What was fetched is kept and used by the "
        f"next run; the good snapshots are as they were. {MAKE_ROOM}",
        SPACE,
    )
