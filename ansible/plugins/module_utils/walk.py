# SPDX-License-Identifier: GPL-2.0-only
"""Find the large directories of an ext4 file system without listing more than that takes."""

from __future__ import annotations

import errno
import os
import resource
import stat
import time

from . import ext4

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Bound(Exception):
    """The work allowed is done; its argument names the option that bounds it."""


class Walk:
    """One walk over several paths, with one bound for all.

    found, problems and the counters can be read when it has ended, by itself or by Bound.
    """

    def __init__(self, min_blocks, recursive, count_entries, max_names, max_seconds):
        self.min_blocks, self.recursive, self.count_entries = min_blocks, recursive, count_entries
        self.names_left, self.deadline = max_names, time.monotonic() + max_seconds
        self.found, self.problems, self.seen = [], [], set()
        self.directories = self.listed = self.names = 0
        # A descriptor is held for each level.
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def problem(self, path, err):
        self.problems.append({"path": path, "error": err.strerror or str(err)})

    def over(self, path, block_size):
        """Look at a directory and, if recursive, at all below it on the same file system."""
        top = os.path.realpath(path)
        fd = os.open(top, OPEN)
        device = os.fstat(fd).st_dev
        # Each level: descriptor, path, names of subdirectories still to be visited.
        stack = []
        try:
            below = self._visit(fd, top, device, block_size)
            stack.append((fd, top, below))
            fd = -1
            while stack:
                at, where, names = stack[-1]
                if not names:
                    os.close(at)
                    stack.pop()
                    continue
                name = names.pop()
                sub = os.path.join(where, name)
                try:
                    fd = os.open(name, OPEN, dir_fd=at)
                except OSError as err:
                    if err.errno not in GONE:
                        self.problem(sub, err)
                    continue
                below = self._visit(fd, sub, device, block_size)
                if below:
                    stack.append((fd, sub, below))
                else:
                    os.close(fd)
                fd = -1
        finally:
            for at in [level[0] for level in stack] + [fd] * (fd >= 0):
                os.close(at)

    def _visit(self, fd, path, device, block_size):
        """Note an open directory if it is large; the names of its subdirectories, if they are wanted."""
        if time.monotonic() > self.deadline:
            raise Bound("max_seconds")
        st = os.fstat(fd)
        # Another file system is mounted here, or another path has led here before.
        if st.st_dev != device or (st.st_dev, st.st_ino) in self.seen:
            return []
        self.directories += 1
        blocks = st.st_size // block_size
        large = blocks >= self.min_blocks
        # ext4 counts a directory's subdirectories in its links: with two there are none. One stands for too many.
        parent = self.recursive and st.st_nlink != 2
        entry = None
        if large:
            # Only these: a set of all directories would grow without bound.
            self.seen.add((st.st_dev, st.st_ino))
            bits = ext4.flags(fd)
            why = ext4.why_no_tree(bits)
            entry = {
                "path": path,
                "blocks": blocks,
                "bytes": st.st_size,
                "has_tree": bool(bits & ext4.FL_ITREE),
                "can_have_tree": not why,
                "why_not": why,
                "entries": None,
            }
            try:
                path.encode()
            except UnicodeEncodeError:
                # Such a path does not survive the way to the controller and back.
                entry.update(
                    path=path.encode(errors="surrogateescape").decode(errors="backslashreplace"),
                    can_have_tree=False,
                    why_not="its path is not UTF-8, which Ansible cannot hand on; use e4itree on the host",
                )
            self.found.append(entry)
        below = []
        if parent or (large and self.count_entries):
            try:
                below, number = self._list(fd)
            except OSError as err:
                self.problem(path, err)
            else:
                if entry:
                    entry["entries"] = number
        return below if parent else []

    def _list(self, fd):
        """The subdirectories of an open directory, and how many names it has."""
        self.listed += 1
        below, number = [], 0
        with os.scandir(fd) as names:
            for item in names:
                number += 1
                self.names += 1
                self.names_left -= 1
                if self.names_left < 0:
                    raise Bound("max_names")
                if not number % 1000 and time.monotonic() > self.deadline:
                    raise Bound("max_seconds")
                if item.is_dir(follow_symlinks=False):
                    below.append(item.name)
        return below, number


def on_ext4(path):
    """The mount that a directory is on; Ext4Error if it is no directory on ext4."""
    try:
        st = os.stat(path)
    except OSError as err:
        raise ext4.Ext4Error(f"{path}: {err.strerror}") from err
    if not stat.S_ISDIR(st.st_mode):
        raise ext4.Ext4Error(f"{path}: not a directory")
    mount = ext4.mount_of(path)
    if mount is None or mount.fstype not in ext4.TYPES:
        kind = mount.fstype if mount else "a file system that this process does not see"
        raise ext4.Ext4Error(f"{path}: it is on {kind}, and only ext4 has itrees")
    return mount
