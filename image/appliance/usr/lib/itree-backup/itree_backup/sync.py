# SPDX-License-Identifier: GPL-2.0-only
"""A second copy: the snapshots of the backup volume, brought to another volume.

The other volume is one of itree-backup's own, with the same directories, sums
and records: mounted in place of the first, it is the backup volume. A snapshot
is copied by rsync and linked to its neighbours there, as a backup is; what came
is read back; and each file's sum must be the one that the first volume's record
has. So a file that rotted on the first volume is not copied, and one whose data
changed but not its size and time is not linked to an older snapshot.
"""

import contextlib
import dataclasses
import os
import time

from . import config, configcopy, retention, transfer, verify
from .errors import DAMAGED, USAGE, BackupError
from .run import say, use_partials
from .store import GAPS, MARKER, Flusher, Store, Tree, check_space, check_volume, init, on_volume
from .sums import Sums
from .transfer import show


def volume(base, path, fresh):
    """The settings with another volume in place of the first. Raises BackupError.

    fresh: whether an empty mounted file system may become such a volume.
    """
    path = path.absolute()
    check_volume(base)
    other = dataclasses.replace(base, volume=path)
    if not path.is_dir():
        raise BackupError(f"{path} is not a directory: mount the second volume there", USAGE)
    if path.stat().st_dev == base.volume.stat().st_dev:
        raise BackupError(f"{path} is on the same file system as {base.volume}, and would be lost with it: mount "
                          "another disk there", USAGE)  # fmt: skip
    if fresh and init(other):
        configcopy.make_directory(other)
        say(f"{path} is a backup volume now")
    if not (path / MARKER).is_file():
        raise BackupError(f"{path} is no backup volume yet: there is no {MARKER} in it. Is the disk mounted? To take "
                          "an empty one, say --init", USAGE)  # fmt: skip
    return other


def local(base, name, snapshot, bandwidth):
    """A Host that makes rsync read a snapshot of this machine. bandwidth: KiB/s; 0 is no limit."""
    return config.Host(name=name, address=str(base.volume), port=0, method="local", user="", paths=[f"{snapshot}/./"],
                       exclude=[], bandwidth=bandwidth, compress=False, timeout=0, one_file_system=True,
                       password_file="", keep=base.keep, fall=base.fall, heartbeat="", checksum=0)  # fmt: skip


def neighbours(store, name):
    """Snapshots of a store to link a snapshot of that name to: the one before it, the one after it, the newest."""
    names = [n for n in store.every() if n.removesuffix(GAPS) != name]
    before, after = [n for n in names if n < name], [n for n in names if n > name]
    return [store.path / n for n in dict.fromkeys(before[-1:] + after[:1] + names[-1:])]


def different(old, new, known, copied, seen):
    """Yield paths of a snapshot whose copy has another sum than its own record.

    old, new: Trees; known, copied: their Sums; seen: pairs of inodes compared before; new ones are added.
    """
    for path, entry in old.walk():
        if not entry.is_file(follow_symlinks=False):
            continue
        try:
            pair = (entry.inode(), new.lstat(path).st_ino)
        except OSError:
            yield path
            continue
        if pair in seen:
            continue
        keys = (verify.identity(old, path), verify.identity(new, path))
        was, is_ = (sums.get(*key) if key else None for sums, key in zip((known, copied), keys, strict=True))
        # A file without a record was never compared with the client's; rsync's sum is then all there is.
        if is_ is None or is_[2] or (was and was[0] != is_[0]):
            yield path
        else:
            seen.add(pair)


def again(other, host, store, name, paths, lock_fd):
    """Copy these files of a snapshot again, without linking them to anything."""
    root = store.path / f"{name}.partial"
    with contextlib.closing(Tree(root)) as tree:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                tree.unlink(path)
    return transfer.transfer(other, host, root, [], store, name, lock_fd, transfer.listing(sorted(paths)))


def snapshot(base, other, source, store, name, bandwidth, lock_fd, seen, sums):
    """Copy one snapshot; returns the bytes that rsync copied. Raises BackupError.

    name: as the directory is named; source, store: the host's Stores on both volumes; sums: the Sums of both.
    """
    plain, known, copied = name.removesuffix(GAPS), *sums
    root = store.path / f"{plain}.partial"
    flusher = Flusher(store.path)
    try:
        partials = use_partials(store, copied, flusher)
        linked = [*partials, *neighbours(store, plain)]
        root.mkdir(mode=0o700)
        host = local(base, source.name, source.path / name, bandwidth)
        outcome = transfer.transfer(other, host, root, linked, store, plain, lock_fd)
        flusher.flush()
        what = f"{source.name} {plain}"
        verify.demand(verify.new_files(root, store.sums_of(plain), copied, linked, what), f"{what}: reading it back")
        with contextlib.closing(Tree(source.path / name)) as old, contextlib.closing(Tree(root)) as new:
            wrong = set(different(old, new, known, copied, seen))
            if wrong:
                say(f"{what}: {len(wrong)} files differ from those they were linked to: copying them again")
                more = again(other, host, store, plain, wrong, lock_fd)
                outcome.bytes += more.bytes
                flusher.flush()
                verify.new_files(root, store.sums_of(plain), copied, linked, what, again=wrong)
                wrong = sorted(different(old, new, known, copied, seen))
        if wrong:
            lines = "".join(f"\n    {show(path)}" for path in wrong[:20])
            raise BackupError(
                f"{what}: {len(wrong)} files are damaged on {base.volume}: their data is not what the client sent. "
                f"This snapshot is not copied; run 'itree-backup verify {source.name} {plain}'. Files:{lines}",
                DAMAGED,
            )
        names = verify.count(source.path / name), verify.count(root)
        if names[0] != names[1]:
            raise BackupError(f"{what} has {names[0]} names and its copy {names[1]}: it is not counted", DAMAGED)
        record = {**source.record(name), "damaged": [], "damaged_files": 0, "synced": int(time.time())}
        store.write_record(plain, record)
        flusher.flush()
        store.publish(name)
        store.sums_of(plain).unlink(missing_ok=True)
        for path in partials:
            store.remove(path.name.removesuffix(".partial"), ".partial")
        store.remove_parts()
        say(f"{what}: copied, {outcome.files} new files, {outcome.bytes >> 20} MiB, read back and compared")
        return outcome.bytes
    finally:
        flusher.close()


def set_aside(store, names):
    """Rename what an interrupted copy left, where the copy to be made needs that name."""
    for name in store.names(".partial"):
        if name in names:
            fresh = store.new_name()
            if store.sums_of(name).exists():
                os.rename(store.sums_of(name), store.sums_of(fresh))
            os.rename(store.path / f"{name}.partial", store.path / f"{fresh}.partial")


def host(base, other, source, bandwidth, prune):
    """Copy what the other volume lacks of a host, oldest first; (snapshots, bytes, errors as lines)."""
    store, wrong, total, number = Store(other, source.name), [], 0, 0
    with store.lock() as lock_fd, contextlib.ExitStack() as stack:
        store.finish_removals()
        names = source.every()
        set_aside(store, {n.removesuffix(GAPS) for n in names})
        known = stack.enter_context(contextlib.closing(Sums(source.meta / "sums.sqlite", writer=False)))
        copied = stack.enter_context(contextlib.closing(Sums(store.meta / "sums.sqlite")))
        seen = set()
        there = {n.removesuffix(GAPS) for n in store.every()}
        for name in (n for n in names if n.removesuffix(GAPS) not in there):
            check_space(other)
            try:
                with source.reading(name):
                    total += snapshot(base, other, source, store, name, bandwidth, lock_fd, seen, (known, copied))
                number += 1
            except BackupError as err:
                if err.code != DAMAGED:
                    raise
                # Go on with the others. The failed copy is removed so that none of them links to it.
                wrong.append(str(err))
                store.remove(name.removesuffix(GAPS), ".partial")
        copied.commit()
        status = source.status()
        # A run in progress on the first volume must not show up as running on the copy.
        status = store.status() if status.get("state") == "running" else status
        store.write_status({**status, "synced": int(time.time())})
        if prune and source.held():
            say(f"{source.name}: {source.held()}. Nothing is pruned on {other.volume} either")
        elif prune:
            keep = config.host(base, source.name).keep if source.name in config.hosts(base) else base.keep
            retention.prune(store, keep, say)
    return number, total, wrong


def run(base, path, names, bandwidth=0, fresh=False, prune=False):
    """Copy the snapshots of these hosts, or of all, that the volume mounted at path lacks. Raises BackupError."""
    other = volume(base, path, fresh)
    found = on_volume(base)
    unknown = sorted(set(names) - found)
    if unknown:
        raise BackupError(f"there are no snapshots of {', '.join(unknown)} on {base.volume}", USAGE)
    snapshots, total, wrong = 0, 0, []
    for name in names or sorted(found):
        one = host(base, other, Store(base, name), bandwidth, prune)
        snapshots, total, wrong = snapshots + one[0], total + one[1], wrong + one[2]
    configcopy.save(other)
    rest = "nothing was new" if not (snapshots or wrong) else f"{len(wrong)} left out" if wrong else "all are there now"
    say(f"{path}: {snapshots} snapshots copied, {total >> 20} MiB; {rest}")
    if wrong:
        raise BackupError("\n".join(wrong), DAMAGED)
