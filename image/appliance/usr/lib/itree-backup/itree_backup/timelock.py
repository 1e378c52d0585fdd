# SPDX-License-Identifier: GPL-2.0-only
"""Young snapshots are locked: nothing the units run as can remove them, rename them, or change what is in them.

Every directory of such a snapshot is immutable (chattr(1)). Only
backup-lock@.service has the capability that sets and clears this flag. Files
are not immutable themselves, because the kernel makes no links to such files,
and the next snapshot shares them: their names are locked, their data is not.
"""

import array
import contextlib
import datetime
import errno
import fcntl
import os

from .errors import BackupError
from .store import GAPS, Tree, when

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_IMMUTABLE_FL = 0x10


def flags(fd):
    """The flags of an open directory; 0 where the file system has none."""
    buf = array.array("i", [0])
    try:
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, buf)
    except OSError as err:
        if err.errno in (errno.ENOTTY, errno.EOPNOTSUPP):
            return 0
        raise
    return buf[0]


def set_immutable(fd, on):
    """Set or clear the flag of an open directory. Raises OSError."""
    old = flags(fd)
    new = old | FS_IMMUTABLE_FL if on else old & ~FS_IMMUTABLE_FL
    if new != old:
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, array.array("i", [new]))


def locked(store, name):
    """Whether a snapshot is locked."""
    fd = os.open(store.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return bool(flags(fd) & FS_IMMUTABLE_FL)
    finally:
        os.close(fd)


def refuse_locked(store, names):
    """Raise BackupError if one of these snapshots is locked."""
    found = [name for name in names if locked(store, name)]
    if found:
        raise BackupError(
            f"{store.name}: {len(found)} snapshots are locked, {found[0]} for one: nothing was removed. They are "
            f"unlocked when they are older than [lock] days. To unlock them earlier, lower that number and run "
            f"'itree-backup lock {store.name}'"
        )


def turn(path, on):
    """Lock or unlock a snapshot. Its own directory comes last: its flag says that all others have theirs."""
    with contextlib.closing(Tree(path)) as tree:
        below = [name for name, entry in tree.walk() if entry.is_dir(follow_symlinks=False)]
        for name in reversed(below):
            set_immutable(tree.parent(name + b"/x")[0], on)
        set_immutable(tree.fd, on)


def settle(store, days, say):
    """Lock the snapshots that are younger than `days`, and unlock the others. The host's lock must be held."""
    border = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    for name in store.every():
        young = when(name.removesuffix(GAPS)) > border
        if young == locked(store, name):
            continue
        try:
            turn(store.path / name, young)
        except OSError as err:
            if err.errno == errno.EPERM:
                why = "this needs CAP_LINUX_IMMUTABLE: see backup-lock@.service"
            elif err.errno in (errno.ENOTTY, errno.EOPNOTSUPP):
                why = "its file system has no immutable directories: [lock] needs ext4, XFS or btrfs"
            else:
                why = err.strerror
            raise BackupError(f"{store.name} {name}: cannot {'lock' if young else 'unlock'} it: {why}") from err
        say(f"{store.name}: {'locked' if young else 'unlocked'} {name}")
