# SPDX-License-Identifier: GPL-2.0-only
"""Getting files back: into a directory of this machine, or as a tar stream to wherever."""

import contextlib
import os
import pathlib
import stat
import subprocess
import sys

from . import verify
from .errors import DAMAGED, USAGE, BackupError
from .store import Tree
from .sums import Sums
from .transfer import show


def inside(store, name, path):
    """A path within a snapshot, as bytes without slashes at its ends; raises if it is not there or not plain."""
    plain = os.fsencode(os.path.normpath("/" + path)).strip(b"/")
    if plain:
        tree = Tree(store.path / name)
        try:
            tree.lstat(plain)
        except OSError as err:
            raise BackupError(
                f"{store.name} {name}: there is no {show(plain)} ({err.strerror}); "
                f"'itree-backup list {store.name} {name} DIR' shows a directory"
            ) from err
        finally:
            tree.close()
    return plain


def listing(store, name, path):
    """Names in a directory of a snapshot, one line each; `path` itself if it is a file."""
    plain = inside(store, name, path)
    where = os.path.join(os.fsencode(store.path / name), plain)
    res = subprocess.run(["ls", "-lA", "--time-style=long-iso", "--", where], stdin=subprocess.DEVNULL, check=False)
    if res.returncode:
        raise BackupError(f"{store.name} {name}: {show(plain)} could not be listed (above)")


def restore(store, name, paths, dest, overwrite):
    """Copy paths of a snapshot below a directory, then compare every file with what the client once sent.

    A file that is there already is not touched unless `overwrite`. Returns
    (files compared and right, files of which nothing is known).
    """
    # Links and .. are followed first: the volume is to be found by whatever name it is given.
    dest = pathlib.Path(dest).resolve()
    if is_on_volume(store.base.volume, dest):
        raise BackupError(f"{dest} is on the backup volume: restoring there would change what the backups are", USAGE)
    if not dest.is_dir():
        raise BackupError(f"{dest} is not a directory: make it first", USAGE)
    plain = [inside(store, name, p) for p in paths or ["/"]]
    root = os.fsencode(store.path / name)
    # The dot tells --relative where the part of the name that is kept begins.
    argv = ["rsync", "-aHAX", "--sparse", "--numeric-ids", "--relative", "--modify-window=-1",
            "--info=progress2" if sys.stderr.isatty() else "--quiet"]  # fmt: skip
    # A file that rotted has the size and time that it had when it was right.
    argv += ["--ignore-times"] if overwrite else ["--ignore-existing"]
    # No --: the daemon's and the shell's colons cannot be taken for such after a slash.
    with store.reading(name) as held:
        res = subprocess.run([*argv, *[root + b"/./" + p for p in plain], os.fsencode(dest) + b"/"],
                             stdin=subprocess.DEVNULL, pass_fds=(held,), check=False)  # fmt: skip
        if res.returncode:
            raise BackupError(f"restoring to {dest} failed (rsync ended with {res.returncode}); what it said is above. "
                              "What was restored is there; the snapshot is as it was")  # fmt: skip
        return compare(store, name, plain, dest, overwrite)


def is_on_volume(volume, path):
    """Whether a resolved path is on the backup volume, be it by another mount point."""
    volume = volume.resolve()
    if path.is_relative_to(volume):
        return True
    return os.path.ismount(volume) and path.exists() and path.stat().st_dev == volume.stat().st_dev


def below(tree, path):
    """Regular files at or below a path of a Tree."""
    if path:
        mode = tree.lstat(path).st_mode
        if not stat.S_ISDIR(mode):
            if stat.S_ISREG(mode):
                yield path
            return
    prefix = path + b"/" if path else b""
    for found, entry in tree.walk():
        if entry.is_file(follow_symlinks=False) and found.startswith(prefix):
            yield found


def compare(store, name, plain, dest, overwrite):
    old, new = Tree(store.path / name), Tree(dest)
    sums, right, unknown, found = Sums(store.meta / "sums.sqlite", writer=False), 0, 0, verify.Found()
    kept = 0
    os.sync()
    try:
        for path in [f for p in plain for f in below(old, p)]:
            key = verify.identity(old, path)
            known = sums.get(*key) if key else None
            try:
                got = verify.read_one(new, path)
            except OSError as err:
                found.note_wrong(path, err.strerror)
                continue
            if known is None:
                unknown += 1
            elif got and got[2] == known[0]:
                right += 1
            elif not overwrite and got and not_ours(old, new, path):
                kept += 1
            else:
                found.note_wrong(path, "is not what the client once sent")
    finally:
        for one in (old, new, sums):
            one.close()
    if found.wrong:
        listed = "".join(f"\n    {line}" for line in found.bad[:20])
        raise BackupError(f"{found.wrong} restored files are not what the client once sent:{listed}\nLook for "
                          f"them in an older snapshot: 'itree-backup list {store.name}'", DAMAGED)  # fmt: skip
    return right, unknown, kept


def not_ours(old, new, path):
    """Whether a file at the destination is one that was there before: not of the snapshot's size and time."""
    one, two = old.lstat(path), new.lstat(path)
    return (one.st_size, int(one.st_mtime)) != (two.st_size, int(two.st_mtime))


def export(store, name, paths, out):
    """Write paths of a snapshot to a file descriptor as a tar stream with owners, ACLs and attributes."""
    plain = [b"./" + inside(store, name, p) if p.strip("/") else b"." for p in paths or ["/"]]
    argv = ["tar", "--create", "--file=-", "--numeric-owner", "--acls", "--xattrs", "--sparse",
            "--directory", store.path / name, "--", *plain]  # fmt: skip
    with store.reading(name) as held:
        res = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, pass_fds=(held,),
                             env={**os.environ, "LC_ALL": "C"}, check=False)  # fmt: skip
    # A run that goes on meanwhile links files into the next snapshot, which changes their ctime. tar takes that for
    # a change of the file; it ends with 1 and has written all of it. What is shorter or gone it reports in other words.
    lines = res.stderr.decode(errors="replace").splitlines()
    others = [line for line in lines if not line.endswith(": file changed as we read it")]
    for line in others:
        print(line, file=sys.stderr)
    harmless = res.returncode == 1 and lines and all(line.endswith(": socket ignored") for line in others)
    if res.returncode and not harmless:
        raise BackupError(f"tar ended with {res.returncode}: the stream is not whole (see above)")


def write_sums(store, name, out):
    """Write `md5  path` lines for a snapshot, names escaped as md5sum does it; how many files are missing in it."""
    unknown = 0
    with (store.reading(name), contextlib.closing(Tree(store.path / name)) as tree,
          contextlib.closing(Sums(store.meta / "sums.sqlite", writer=False)) as sums):  # fmt: skip
        for path, entry in tree.walk():
            if not entry.is_file(follow_symlinks=False):
                continue
            key = verify.identity(tree, path)
            known = sums.get(*key) if key else None
            if known is None:
                unknown += 1
                continue
            plain = path.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
            out.write((b"\\" if plain != path else b"") + known[0].hex().encode() + b"  ./" + plain + b"\n")
        out.flush()
    return unknown
