# SPDX-License-Identifier: GPL-2.0-only
"""Looks names of a snapshot up before rsync does, in the order in which the volume has them.

For --link-dest, rsync looks names up in alphabetical order: in a large
directory each is in another block, and its inode in another place. In the
directory's own order (by inode where there is a tree), one sweep reads both, and
they are in memory when rsync asks. This only saves time.
"""

import contextlib
import os
import pathlib
import re

from .transfer import Progress

LARGE = 1 << 16  # a smaller directory is a few blocks, and its inodes lie together
# Bytes of memory to allow for a name. Inode and dentry take 1,300, but may be reclaimed: rsync needs their blocks,
# some 320.
ENTRY = 750
SHARE = 4  # use 1/4 of the available memory: the slice's MemoryHigh is half of all


def available(path="/proc/meminfo"):
    """Bytes available without swapping; 0 if unknown."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", pathlib.Path(path).read_text(), re.M)
    except OSError:
        found = None
    return int(found[1]) << 10 if found else 0


def warm(root, what, memory=None):
    """Stat the entries of the large directories below root until they fill `memory` bytes; returns how many.

    memory: by default a quarter of what is available. More would only evict what was read first.
    """
    left = (available() // SHARE if memory is None else memory) // ENTRY
    seen, progress, todo = 0, Progress(what), [os.fspath(root)]
    # rsync will report what cannot be read.
    while todo and seen < left:
        path = todo.pop()
        found = []
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            large = os.stat(path).st_size > LARGE
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.path)
                elif large:
                    entry.stat(follow_symlinks=False)
                    seen += 1
                    progress.tick(f"{seen} names of the last snapshot looked at")
                if seen >= left:
                    break
        # Visit directories by name, as rsync does.
        todo += sorted(found, reverse=True)
    return seen
