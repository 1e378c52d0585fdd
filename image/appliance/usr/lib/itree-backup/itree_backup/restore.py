# SPDX-License-Identifier: GPL-2.0-only
"""Restoring files: to a directory of this machine, to a client, or as a tar stream."""

import contextlib
import os
import pathlib
import re
import stat
import subprocess
import sys

from . import config, setup, transfer, verify
from .errors import DAMAGED, REFUSED, USAGE, BackupError
from .store import Tree
from .sums import Sums
from .transfer import environ, show

RESTORE_KEY = "restore"  # the private key in ssh/ that writes to clients
ITEM = re.compile(rb"([<>ch.*][fdLDS][^ ]{9}) (.*)", re.S)  # rsync: how a file differs, and its name


def inside(store, name, path):
    """A path within a snapshot, as bytes without slashes at its ends; raises if it does not exist or is not plain."""
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
    with store.reading(name) as held:
        res = copy(store, name, plain, [f"{dest}/"], [*replacing(overwrite), "--modify-window=-1"], held)
        if res.returncode:
            raise BackupError(f"restoring to {dest} failed (rsync ended with {res.returncode}); what it said is above. "
                              "What was restored is there; the snapshot is as it was")  # fmt: skip
        return compare(store, name, plain, dest, overwrite)


def copy(store, name, plain, dest, options, held, **kwargs):
    """Run rsync from a snapshot to a destination; its CompletedProcess.

    plain: as from inside(). dest: rsync's options for the destination, then the destination. held: descriptor that
    keeps the snapshot. kwargs go to subprocess.run().
    """
    argv = ["rsync", "-aHAX", "--recursive", "--from0", "--files-from=-", "--sparse", "--numeric-ids", *options]
    # No --: rsync does not take a colon after a slash for a daemon's or a remote shell's.
    return subprocess.run([*argv, *dest[:-1], f"{store.path / name}/", dest[-1]], input=words(store, name, plain),
                          env=environ(), pass_fds=(held,), check=False, **kwargs)  # fmt: skip


def replacing(overwrite):
    """rsync's options for files that are there already, and for what it prints."""
    # A file that rotted keeps its size and time. By checksums, rsync replaces it and leaves equal files as they are.
    return ["--checksum" if overwrite else "--ignore-existing",
            "--info=progress2" if sys.stderr.isatty() else "--quiet"]  # fmt: skip


def words(store, name, plain):
    """Paths of a snapshot for rsync's --files-from, each terminated by a NUL.

    The top directory of a snapshot is the client's only if the client gave it. Otherwise it is ours, and its mode
    0700 must not be applied to the destination.
    """
    top = [b"."] if store.record(name).get("root") else sorted(os.listdir(os.fsencode(store.path / name)))
    return b"".join(word + b"\0" for path in plain for word in ([path] if path else top))


def client_of(base, dest):
    """(Host, directory) that a destination HOST:[DIR] names; None if it is a directory of this machine.

    Raises BackupError(USAGE) if the host is not configured or the directory is not one of it.
    """
    name, colon, directory = dest.partition(":")
    if not colon or "/" in name:
        return None
    if name not in config.hosts(base):
        have = ", ".join(config.hosts(base)) or "none"
        raise BackupError(f"'{name}' is not a configured host (there are: {have}). For a directory of this machine "
                          f"write ./{dest}", USAGE)  # fmt: skip
    host = config.host(base, name)
    # By ssh the names of a snapshot begin at /, from a daemon at its module.
    directory = directory or ("/" if host.method == "ssh" else host.paths[0].split("/")[0])
    if directory.startswith("/") != (host.method == "ssh"):
        want = "an absolute path" if host.method == "ssh" else "MODULE or MODULE/DIR"
        raise BackupError(f"{dest}: '{directory}' is not {want}, which method = {host.method} wants", USAGE)
    return host, directory.rstrip("/") + "/"


def to_client(base, store, name, paths, host, directory, overwrite):
    """Copy paths of a snapshot below a directory of a client, and compare; returns and raises as restore() does.

    Over ssh this uses a key of its own, which the client's admin authorizes for the time of the restore: the key that
    backups use may only read.
    """
    plain = [inside(store, name, p) for p in paths or ["/"]]
    key = setup.make_key(base.conf, RESTORE_KEY) if host.method == "ssh" else None
    dest = [*transfer.connection(base, host, key), transfer.source(host, directory)]
    where = f"{host.name}:{directory}"
    with store.reading(name) as held:
        res = copy(store, name, plain, dest, replacing(overwrite), held, stderr=subprocess.PIPE)
        lines = [show(line) for line in res.stderr.splitlines() if line.strip()]
        for line in lines[-50:]:
            print(f"{host.name}: {line}", file=sys.stderr)
        if res.returncode:
            failure = transfer.explain(host, res.returncode, lines)
            if failure.code == REFUSED and key:
                line = setup.authorized(setup.public_half(base.conf, RESTORE_KEY), "-wo")
                raise BackupError(
                    f"{where}: the client does not let us write: {lines[-1] if lines else 'no reason given'}. Put this "
                    f"line into its authorized_keys, restore again, and remove it afterwards:\n{line}",
                    REFUSED,
                )
            raise BackupError(f"restoring to {where} failed: {'; '.join(lines[-3:])}. What was restored is there; the "
                              "snapshot is as it was", failure.code)  # fmt: skip
        return compare_client(store, name, plain, dest, overwrite, held)


def compare_client(store, name, plain, dest, overwrite, held):
    """Compare what a client has with the snapshot by checksums, and the snapshot with what the client once sent."""
    options = ["--dry-run", "--checksum", "--8-bit-output", "--out-format=%i %n"]
    res = copy(store, name, plain, dest, options, held, stdout=subprocess.PIPE)
    if res.returncode:
        raise BackupError(f"{dest[-1]}: the files were restored and could not be compared: rsync ended with "
                          f"{res.returncode}")  # fmt: skip
    differ = {}
    for line in res.stdout.split(b"\n"):
        match = ITEM.fullmatch(line)
        if match and match[1][:1] in b"<c":
            differ[transfer.unescape(match[2])] = match[1]
    result, right, unknown, kept = verify.Found(), 0, 0, 0
    with (contextlib.closing(Tree(store.path / name)) as tree,
          contextlib.closing(Sums(store.meta / "sums.sqlite", writer=False)) as sums):  # fmt: skip
        for path in [f for p in plain for f in below(tree, p)]:
            how = differ.get(path)
            # Another size or time: it is another file, which was there before.
            if how and not overwrite and how[2:3] != b"+" and (how[3:4] == b"s" or how[4:5] in b"tT"):
                kept += 1
                continue
            if how and how[2:3] in b"+c":
                result.note_wrong(path, "is not on the client" if how[2:3] == b"+" else "is not what the snapshot has")
                continue
            one = verify.read_one(tree, path)
            record = sums.get(*one[:2]) if one else None
            if record is None:
                unknown += 1
            elif record[0] == one[2]:
                right += 1
            else:
                result.note_wrong(path, "is not what the client once sent")
    refuse_wrong(store, result)
    return right, unknown, kept


def is_on_volume(volume, path):
    """Whether a resolved path is on the backup volume, even by another mount point."""
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
    refuse_wrong(store, found)
    return right, unknown, kept


def refuse_wrong(store, result):
    """Raise BackupError(DAMAGED) if a comparison found restored files that are wrong."""
    if result.wrong:
        listed = "".join(f"\n    {line}" for line in result.bad[:20])
        raise BackupError(f"{result.wrong} restored files are not what the client once sent:{listed}\nLook for "
                          f"them in an older snapshot: 'itree-backup list {store.name}'", DAMAGED)  # fmt: skip


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
    # A concurrent run links files into the next snapshot, which changes their ctime. tar reports that as a change and
    # ends with 1, but has written the whole file. Truncated and missing files it reports in other words.
    lines = res.stderr.decode(errors="replace").splitlines()
    others = [line for line in lines if not line.endswith(": file changed as we read it")]
    for line in others:
        print(line, file=sys.stderr)
    harmless = res.returncode == 1 and lines and all(line.endswith(": socket ignored") for line in others)
    if res.returncode and not harmless:
        raise BackupError(f"tar ended with {res.returncode}: the stream is incomplete (see above)")


def write_sums(store, name, out):
    """Write `md5  path` lines for a snapshot, names escaped as md5sum does it; returns how many files are missing."""
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
