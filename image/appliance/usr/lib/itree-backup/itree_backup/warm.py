# SPDX-License-Identifier: GPL-2.0-only
"""Looking at the names of a snapshot before rsync does, in the order in which the volume has them.

For --link-dest rsync looks names up one by one in the order of their names: on
a large directory each is in another block and its inode in another place. In
the directory's own order, that of the inodes where there is a tree, both are
read in one sweep, and are in memory when rsync asks. Nothing depends on it.
"""

import contextlib
import os
import pathlib
import re

from .transfer import Progress

LARGE = 1 << 16  # a smaller directory is a few blocks, and its inodes lie together
# Bytes of memory for a name that was looked at. Inode and dentry take 1,300, but may go: what is wanted again are
# their blocks, some 320.
ENTRY = 750
SHARE = 4  # of the memory that is to be had, one part of so many: the slice's MemoryHigh is half of all


def available(path="/proc/meminfo"):
    """Bytes that can be had without swapping; 0 if nothing tells."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", pathlib.Path(path).read_text(), re.M)
    except OSError:
        found = None
    return int(found[1]) << 10 if found else 0


def warm(root, what, memory=None):
    """Look at the entries of the large directories below root until they fill `memory` bytes; how many there were.

    memory: a quarter of what is available unless given. More would only push out what was read first.
    """
    left = (available() // SHARE if memory is None else memory) // ENTRY
    seen, progress, todo = 0, Progress(what), [os.fspath(root)]
    # What cannot be read here rsync will tell of.
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
        # By name, as rsync goes.
        todo += sorted(found, reverse=True)
    return seen
