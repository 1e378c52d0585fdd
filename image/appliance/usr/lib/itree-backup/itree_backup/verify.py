# SPDX-License-Identifier: GPL-2.0-only
"""Reading files back and comparing them with what the client sent.

Files are taken in windows and read in inode order, which on ext4 is near
the order of their data.
"""

import contextlib
import dataclasses
import os
import stat
import time
from collections.abc import Callable

from . import sums as sums_
from .errors import DAMAGED, BackupError
from .store import Tree
from .transfer import Progress, read_spool, show

WINDOW = 20000


@dataclasses.dataclass
class Found:
    """right, wrong, unknown: files; bad: paths of the wrong ones, the first hundred."""

    right: int = 0
    wrong: int = 0
    unknown: int = 0
    skipped: int = 0
    bytes: int = 0
    bad: list = dataclasses.field(default_factory=list)
    on_wrong: Callable | None = None  # called with the path of each

    def add(self, other, name):
        """Add the result of another snapshot; its name is put before the paths of damaged files."""
        for key in ("right", "wrong", "unknown", "skipped", "bytes"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        self.bad += [f"{name}/{line}" for line in other.bad]

    def note_wrong(self, path, why):
        self.wrong += 1
        if self.on_wrong:
            self.on_wrong(path)
        if len(self.bad) < 100:
            self.bad.append(f"{show(path)}: {why}")


def windows(entries, tree):
    """Group (path, ...) into windows sorted by inode; a path that lstat() fails on gets inode 0."""
    window = []
    for path, *rest in entries:
        try:
            ino = tree.lstat(path).st_ino
        except OSError:
            ino = 0
        window.append((ino, path, *rest))
        if len(window) >= WINDOW:
            yield sorted(window, key=lambda w: w[0])
            window = []
    yield sorted(window, key=lambda w: w[0])


def read_one(tree, path):
    """(inode, generation, md5, size) of a regular file, read from the disk; None if it is another kind of file. Raises
    OSError."""
    fd = tree.open(path)
    try:
        got = os.fstat(fd)
        if not stat.S_ISREG(got.st_mode):
            return None
        return got.st_ino, sums_.generation(fd), sums_.digest(fd), got.st_size
    finally:
        os.close(fd)


def identity(tree, path):
    """(inode, generation) of a regular file; None if it is missing or another kind of file."""
    try:
        fd = tree.open(path)
    except OSError:
        return None
    try:
        got = os.fstat(fd)
        return (got.st_ino, sums_.generation(fd)) if stat.S_ISREG(got.st_mode) else None
    finally:
        os.close(fd)


def damaged(tree, path, sums, bad):
    """Whether a path of a tree is a file known to be damaged. bad: sums.bad()."""
    try:
        if tree.lstat(path).st_ino not in bad:
            return False
    except OSError:
        return False
    key = identity(tree, path)
    # A file that cannot even be opened counts as damaged.
    known = sums.get(*key) if key else (None, 0, 1)
    return bool(known and known[2])


def drop_damaged(root, spool, sums, bases):
    """Remove the files that a run took from files of `bases` known to be damaged; returns their paths.

    rsync links by size and time, or copies if owner or mode differ, without comparing the data.
    """
    bad, dropped = sums.bad(), set()
    if not bad:
        return dropped
    tree, olds = Tree(root), [Tree(b) for b in bases]
    try:
        for path, entry in tree.walk():
            if entry.is_file(follow_symlinks=False) and entry.inode() in bad and damaged(tree, path, sums, bad):
                dropped.add(path)
        dropped.update(path for md5, path in read_spool(spool)
                       if md5 is None and any(damaged(old, path, sums, bad) for old in olds))  # fmt: skip
        for path in dropped:
            tree.unlink(path)
    finally:
        for one in (tree, *olds):
            one.close()
    return dropped


def new_files(root, spool, sums, bases, what, on_wrong=None, again=frozenset(), retried=frozenset(),
              gaps=frozenset()):  # fmt: skip
    """Compare what a run fetched, as its spool lists it, with what is on disk; note sums that are right.

    A file without a sum was copied here by rsync from one of `bases` because
    only its owner or mode differed: it must equal that one. again: files that
    were fetched again to replace such copies. retried: files whose last line counts; gaps: files that did not arrive
    whole, and are not here. Returns Found.
    """
    last = {path: md5 for md5, path in read_spool(spool) if path in retried} if retried else {}
    found, tree, progress = Found(on_wrong=on_wrong), Tree(root), Progress(what)
    olds = [Tree(b) for b in bases]
    try:
        entries = ((path, md5) for md5, path in read_spool(spool)
                   if (md5 or path not in again) and last.get(path, md5) == md5 and path not in gaps)  # fmt: skip
        for window in windows(entries, tree):
            for _, path, want in window:
                try:
                    got = read_one(tree, path)
                except OSError as err:
                    found.note_wrong(path, err.strerror)
                    continue
                if got is None:
                    found.note_wrong(path, "is not a regular file")
                    continue
                if want is None:
                    keys = [key for key in (identity(old, path) for old in olds) if key]
                    wants = [known[0] for known in (sums.get(*key) for key in keys) if known]
                    ok = got[2] in wants or not wants
                else:
                    ok = got[2] == want
                if not ok:
                    found.note_wrong(path, "the disk does not give back what the client sent")
                    continue
                sums.put(got[0], got[1], got[2], time.time())
                found.right += 1
                found.bytes += got[3]
                progress.tick(f"{found.right} new files read back, {found.bytes >> 20} MiB")
        sums.commit()
    finally:
        for one in (tree, *olds):
            one.close()
    return found


def settle(root, spool, sums, bases, what):
    """Make an interrupted run safe to link to: remove its files that are wrong or not known to be right.

    Files that it shares with good snapshots are known by their inodes. Returns
    (files kept because they are right, files removed).
    """
    tree, removed = Tree(root), 0

    def drop(path):
        # Later runs may have linked to the file. Without a record, they drop it too.
        nonlocal removed
        with contextlib.suppress(FileNotFoundError):
            sums.forget(tree.lstat(path).st_ino)
            tree.unlink(path)
            removed += 1

    try:
        found = new_files(root, spool, sums, bases, what, drop)
        for path, entry in tree.walk():
            if entry.is_file(follow_symlinks=False):
                key = identity(tree, path)
                known = sums.get(*key) if key else None
                if known is None or known[2]:
                    tree.unlink(path)
                    removed += 1
    finally:
        tree.close()
    return found.right, removed


def count(root):
    """Names below a directory."""
    tree = Tree(root)
    try:
        return sum(1 for _ in tree.walk())
    finally:
        tree.close()


def chosen(tree, only):
    """Yield (path,) of the regular files of a tree, or of those whose inodes are in the set `only`.

    An inode leaves `only` when its path is yielded, and the walk ends when the set is empty.
    """
    for path, entry in tree.walk():
        if not entry.is_file(follow_symlinks=False):
            continue
        if only is not None:
            if entry.inode() not in only:
                continue
            only.discard(entry.inode())
        yield (path,)
        if only is not None and not only:
            return


def snapshot(root, sums, since, adopt, what, only=None):
    """Read every file of a snapshot and compare. Files whose inode was read since `since` are not read again.

    adopt: files without a record get one of their present contents. only: a set of inodes to read instead of all;
    those in this snapshot are removed from the set. Returns Found.
    """
    found, tree, progress = Found(), Tree(root), Progress(what)
    try:
        for window in windows(chosen(tree, only), tree):
            for ino, path in window:
                key = identity(tree, path)
                known = sums.get(*key) if key else None
                # A date in the future comes from a wrong clock, and counts as never.
                if known and since <= known[1] <= time.time():
                    if known[2]:
                        found.note_wrong(path, "is not what the client sent")
                    else:
                        found.skipped += 1
                    continue
                try:
                    got = read_one(tree, path)
                except OSError as err:
                    found.note_wrong(path, err.strerror)
                    sums.mark_bad(ino)
                    continue
                if got is None or (known is None and not adopt):
                    found.unknown += 1
                    continue
                ok = known is None or known[0] == got[2]
                sums.put(got[0], got[1], known[0] if known else got[2], time.time(), bad=not ok)
                if ok:
                    found.right += 1
                else:
                    found.note_wrong(path, "is not what the client sent")
                found.bytes += got[3]
                progress.tick(f"{found.right} files read, {found.bytes >> 20} MiB")
        sums.commit()
    finally:
        tree.close()
    return found


def demand(found, what):
    """Raise BackupError(DAMAGED) unless all was right."""
    if found.wrong:
        listed = "".join(f"\n    {line}" for line in found.bad[:20])
        more = f"\n    ... and {found.wrong - 20} more" if found.wrong > 20 else ""
        raise BackupError(f"{what}: {found.wrong} files are not right:{listed}{more}\nThe disk, the controller or "
                          "memory is not to be trusted: see journalctl -k, smartctl -a", DAMAGED)  # fmt: skip
