# SPDX-License-Identifier: GPL-2.0-only
"""The directory of a host on the volume: names of snapshots, the lock, what makes a snapshot count.

    VOLUME/.itree-backup-volume          says that this is the volume
    VOLUME/HOST/2026-11-21T02-00-07Z     a good snapshot: complete, verified, on disk
    VOLUME/HOST/....partial              a run that did not end; used by the next
    VOLUME/HOST/....deleting             being removed
    VOLUME/HOST/.itree-backup/           lock, status, sums, one record a snapshot

A name without a suffix appears by rename() after everything below it is on
disk, and goes by rename() before its first file is removed.
"""

import contextlib
import ctypes
import datetime
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

from . import config
from .errors import BUSY, FAILED, SPACE, USAGE, BackupError

MARKER = ".itree-backup-volume"
# Files in state_directory() that say what is wrong with the machine, a line each; status and the page show them.
TROUBLE = "*-trouble"
VOLUME_TROUBLE = "volume-trouble"
GAPS = ".gaps"  # suffix of a snapshot that lacks files the client could not give
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ")
FORMAT = "%Y-%m-%dT%H-%M-%SZ"
_LIBC = ctypes.CDLL(None, use_errno=True)


def when(name):
    """The time in a snapshot's name, in UTC."""
    return datetime.datetime.strptime(name, FORMAT).replace(tzinfo=datetime.UTC)


def fsync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path, data):
    """Replace a file atomically: after a crash it is the old one or the new one. data: text or bytes."""
    path = pathlib.Path(path)
    temp = path.with_name(f".{path.name}.new")
    # Never readable by others, not even for a moment: it may be a key.
    with open(temp, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as handle:
        handle.write(data.encode() if isinstance(data, str) else data)
        handle.flush()
        os.fsync(handle.fileno())
    os.rename(temp, path)
    fsync_directory(path.parent)


class Flusher:
    """Writes a whole file system out, and reports any write error since this was created."""

    def __init__(self, path):
        # The kernel reports errors to descriptors that were open when they happened.
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def flush(self):
        err = ctypes.get_errno() if _LIBC.syncfs(self.fd) else 0
        try:
            # On ext4 with an aborted journal, syncfs has nothing to write out and succeeds; fsync fails.
            os.fsync(self.fd)
        except OSError as failed:
            err = err or failed.errno
        if err:
            code = SPACE if err in (28, 122) else FAILED  # ENOSPC, EDQUOT
            raise BackupError(f"{self.path}: data could not be written to disk: {os.strerror(err)}. "
                              "See the kernel log (journalctl -k) before trusting this volume", code)  # fmt: skip

    def close(self):
        os.close(self.fd)


def check_volume(base):
    """Raise unless the volume is there: a run must never fill the disk below an empty mount point."""
    if not (base.volume / MARKER).is_file():
        raise BackupError(
            f"{base.volume} is not a backup volume: there is no {MARKER} in it. Is it mounted (findmnt {base.volume})? "
            "A new volume becomes one by 'itree-backup init'"
        )


class Store:
    """A host's directory. base is config.Settings."""

    def __init__(self, base, name):
        self.base, self.name = base, config.check_name(name)
        self.path = base.volume / name
        self.meta = self.path / ".itree-backup"

    def prepare(self):
        """Make the directories, for root alone."""
        check_volume(self.base)
        for path in (self.path, self.meta, self.meta / "parts"):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                fsync_directory(path.parent)
        # In a sandbox or below a forgotten mount, the marker may be there and the directory on another file system.
        if self.path.stat().st_dev != (self.base.volume / MARKER).stat().st_dev:
            raise BackupError(
                f"{self.path} is not on the file system of {self.base.volume}: something is mounted over it "
                f"(findmnt -R {self.base.volume}). A snapshot there would not be on the backup volume"
            )

    @contextlib.contextmanager
    def lock(self, wait=1.0):
        """Hold the host for this process and the rsync it starts; yields the descriptor to pass on.

        rsync inherits it, so that after a kill -9 of this process nothing
        else writes here before rsync has ended too. Waits at most `wait`
        seconds. Raises BackupError(BUSY).
        """
        self.prepare()
        fd = os.open(self.meta / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end, remind = time.monotonic() + wait, time.monotonic() + 15
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise BackupError(
                            f"{self.name}: another run, prune or verify of this host is at work "
                            f"(lock {self.meta}/lock); try again when it has ended",
                            BUSY,
                        ) from None
                    if time.monotonic() >= remind:
                        remind = end
                        print(f"{self.name}: waiting for another run, prune or verify of this host to end", flush=True)
                    time.sleep(0.1)
            yield fd
        finally:
            os.close(fd)

    def entries(self):
        """Names in the directory, in no order; none if it does not exist."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def names(self, suffix="", found=None):
        """Names with that suffix, oldest first, without it. found: entries(), if they are known already."""
        found = self.entries() if found is None else found
        return sorted(n.removesuffix(suffix) for n in found if n.endswith(suffix) and NAME.fullmatch(
            n.removesuffix(suffix)))  # fmt: skip

    def snapshots(self):
        """Good snapshots, oldest first."""
        return self.names()

    def with_gaps(self):
        """Snapshots that lack what the client could not give, oldest first, as the directories are named."""
        return self.listed()[1]

    def every(self):
        """Both, oldest first, as the directories are named."""
        good, gaps, _ = self.listed()
        return sorted(good + gaps)

    def listed(self):
        """(good, with gaps, partial): names of snapshots() and with_gaps(), and of partial ones, from one listing."""
        found = self.entries()
        gaps = [name + GAPS for name in self.names(GAPS, found)]
        return self.names("", found), gaps, self.names(".partial", found)

    def find(self, name):
        """The snapshot an admin names: its full name, the beginning of one, or `latest`, the newest good one."""
        good, have = self.snapshots(), self.every()
        if not have:
            raise BackupError(f"{self.name}: there is no good snapshot yet")
        if name in ("latest", None):
            return (good or have)[-1]
        found = [n for n in have if n.startswith(name)]
        if len(found) != 1:
            what = f"matches {len(found)} snapshots" if found else "matches no snapshot"
            raise BackupError(f"{self.name}: '{name}' {what}; 'itree-backup list {self.name}' shows the snapshots")
        return found[0]

    def new_name(self):
        """A name for a run that begins now; waits for the next second if this one has a name already."""
        for _ in range(5):
            name = datetime.datetime.now(datetime.UTC).strftime(FORMAT)
            if not any((self.path / (name + s)).exists() for s in ("", GAPS, ".partial", ".deleting")):
                return name
            time.sleep(1.01)
        raise BackupError(f"{self.path}: the clock stands still: {name} exists already")

    def publish(self, name):
        """Give a partial snapshot its final name, which may end in GAPS. All of it must be on disk by now."""
        os.rename(self.path / f"{name.removesuffix(GAPS)}.partial", self.path / name)
        fsync_directory(self.path)

    @contextlib.contextmanager
    def reading(self, name):
        """Keep a snapshot from being removed while it is read; yields a descriptor for the program that reads it."""
        gone = BackupError(f"{self.name} {name}: this snapshot is being removed just now")
        try:
            fd = os.open(self.path / name, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            raise gone from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                # It may have been renamed between the open and the lock.
                os.stat(self.path / name)
            except (BlockingIOError, FileNotFoundError):
                raise gone from None
            yield fd
        finally:
            os.close(fd)

    def take_away(self, name, suffix, gone):
        """Rename a snapshot or partial for its removal. Raises BackupError(BUSY) if somebody reads it."""
        fd = os.open(self.path / (name + suffix), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self.path / (name + suffix), gone)
        except BlockingIOError:
            raise BackupError(f"{self.name} {name}: a restore, export or list of sums reads this snapshot; it stays "
                              "until the next prune", BUSY) from None  # fmt: skip
        finally:
            os.close(fd)
        fsync_directory(self.path)

    def remove(self, name, suffix=""):
        """Remove a snapshot or partial: its name at once, then its files. BackupError(BUSY) if it is being read."""
        plain = name.removesuffix(GAPS)
        gone = self.path / f"{plain}.deleting"
        if suffix != ".deleting":
            self.take_away(name, suffix, gone)
        # rm goes through large directories in inode order; --one-file-system: nothing mounted below is touched.
        res = subprocess.run(["rm", "-rf", "--one-file-system", "--", gone], stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, errors="replace", check=False)  # fmt: skip
        if res.returncode or gone.exists():
            raise BackupError(f"{gone} could not be removed: {res.stderr.strip()[-500:]}")
        for path in (self.sums_of(plain), self.record_path(plain)):
            path.unlink(missing_ok=True)

    def forget(self, each):
        """Remove everything of this host; call each(name) for each snapshot that is gone. The lock must be held."""
        for name in self.every():
            self.remove(name)
            each(name)
        for name in self.names(".partial"):
            self.remove(name, ".partial")
        self.finish_removals()
        shutil.rmtree(self.meta)
        self.path.rmdir()
        fsync_directory(self.path.parent)

    def finish_removals(self):
        """Go on with removals that a crash cut short, and remove lists of sums that no interrupted run needs."""
        for name in self.names(".deleting"):
            self.remove(name, ".deleting")
        if (self.meta / "fresh").exists():
            shutil.rmtree(self.meta / "fresh")
        for path in [p for kind in ("sums", "again", "paths") for p in self.meta.glob(f"*.{kind}")]:
            if not (self.path / f"{path.stem}.partial").exists():
                path.unlink()

    def remove_parts(self):
        """Remove the partial files that interrupted runs left for rsync to resume."""
        for path in (self.meta / "parts").iterdir():
            path.unlink()

    def sums_of(self, name):
        """The file where a run records the checksum that the client sends of each file."""
        return self.meta / f"{name}.sums"

    def record_path(self, name):
        return self.meta / f"{name.removesuffix(GAPS)}.json"

    def left_out(self):
        """Names of attributes that this volume has refused once, and that are left out from then on."""
        return sorted(read_json(self.meta / "left-out.json").get("attributes", ()))

    def leave_out(self, names):
        """Add to left_out()."""
        new = sorted({*self.left_out(), *names})
        if new != self.left_out():
            write_file(self.meta / "left-out.json", json.dumps({"attributes": new}) + "\n")

    def record(self, name):
        """The record of a snapshot; {} if it cannot be read."""
        return read_json(self.record_path(name))

    def write_record(self, name, record):
        """Store what record() returns."""
        write_file(self.record_path(name), json.dumps(record, indent=1, sort_keys=True) + "\n")

    def damaged(self):
        """Files found damaged, summed over the snapshots that are there; a file that several share counts in each."""
        return sum(damaged_in(self.record(name)) for name in self.every())

    def held(self):
        """Why pruning waits for the admin; an empty text if nothing is held."""
        return read_json(self.meta / "held.json").get("why", "")

    def held_for(self):
        """The numbers before the fall, as {"names": number, "bytes": number, "last": snapshot}; {} without a hold."""
        return read_json(self.meta / "held.json").get("before", {})

    def hold(self, why, before=None):
        """Hold all snapshots for a reason; an empty reason ends the hold. before: as held_for()."""
        if why:
            write_file(self.meta / "held.json", json.dumps({"why": why, "before": before}) + "\n")
        else:
            (self.meta / "held.json").unlink(missing_ok=True)

    def status(self):
        return read_json(self.meta / "status.json")

    def write_status(self, status):
        write_file(self.meta / "status.json", json.dumps(status, indent=1, sort_keys=True) + "\n")


def damaged_in(record):
    """Number of damaged files in the record of a snapshot."""
    return record.get("damaged_files", len(record.get("damaged", ())))


def stores(base, name=None):
    """The hosts that are configured or have a directory, or one of them. Raises BackupError."""
    if name:
        store = Store(base, name)
        if not store.path.is_dir() and name not in config.hosts(base):
            raise BackupError(f"there is no host '{name}', neither configured nor on the volume", USAGE)
        return [store]
    return [Store(base, n) for n in sorted(on_volume(base) | set(config.hosts(base)))]


def on_volume(base):
    """Names of the hosts that have a directory on the volume. Raises BackupError."""
    check_volume(base)
    return {n for n in os.listdir(base.volume) if (base.volume / n / ".itree-backup").is_dir()}


def state_directory():
    """Directory of the machine's own state: the one systemd gives the unit, or the default."""
    return pathlib.Path(os.environ.get("STATE_DIRECTORY", "").split(":")[0] or "/var/lib/itree-backup")


def read_json(path):
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def free(path):
    """(free bytes, percent free, percent of inodes free) of a volume, without root's reserve."""
    got = os.statvfs(path)
    inodes = 100.0 * got.f_favail / got.f_files if got.f_files else 100.0
    return got.f_bavail * got.f_frsize, 100.0 * got.f_bavail / max(got.f_blocks, 1), inodes


def free_of(base):
    """free() of the whole volume. The directory of a host would report what the host's quota leaves."""
    # In the unit's sandbox, a tmpfs covers the volume's top directory.
    return free(base.volume / MARKER)


def check_space(base):
    """Raise BackupError(SPACE) if the volume is fuller than the configuration allows."""
    space, percent, inodes = free_of(base)
    short = []
    if percent < base.min_free:
        short.append(f"{percent:.1f} % of the space ({space >> 20} MiB) is free, min_free_percent is {base.min_free:g}")
    if inodes < base.min_free_inodes:
        short.append(f"{inodes:.1f} % of the inodes are free, min_free_inodes_percent is {base.min_free_inodes:g}")
    if short:
        raise BackupError(
            f"{base.volume}: {'; '.join(short)}. Nothing was started. Keep fewer snapshots ([keep], then "
            "'itree-backup prune HOST'), remove what an interrupted run left ('itree-backup discard HOST'), or "
            "make the volume larger",
            SPACE,
        )


def init(base, force_mounted=True):
    """Make a directory the backup volume."""
    path = base.volume
    if not path.is_dir():
        raise BackupError(f"{path} is not a directory: make it and mount the volume on it first")
    if (path / MARKER).exists():
        return False
    if force_mounted and not os.path.ismount(path):
        raise BackupError(f"{path} is not a mount point: mount the volume first, or give --no-mount if backups are to "
                          "share this file system")  # fmt: skip
    others = sorted(n for n in os.listdir(path) if n != "lost+found")
    if others:
        raise BackupError(f"{path} is not empty ({', '.join(others[:5])}): not taken for a new backup volume")
    shutil.chown(path, 0, 0)
    path.chmod(0o700)
    write_file(path / MARKER, "This volume belongs to itree-backup.\n")
    return True


class Tree:
    """A snapshot's files by path, never through a symbolic link: what a client sent must not lead elsewhere."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self.last = (b"", os.dup(self.fd))

    def parent(self, path):
        """Descriptor of the directory a path (bytes, relative) is in, and its last part."""
        directory, _, name = path.strip(b"/").rpartition(b"/")
        if directory != self.last[0]:
            fd = os.dup(self.fd)
            for part in directory.split(b"/") if directory else ():
                if part in (b"", b".", b".."):
                    os.close(fd)
                    raise OSError(22, "not a plain path", path)
                try:
                    new = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                finally:
                    os.close(fd)
                fd = new
            os.close(self.last[1])
            self.last = (directory, fd)
        return self.last[1], name

    def lstat(self, path):
        fd, name = self.parent(path)
        return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def open(self, path):
        fd, name = self.parent(path)
        # O_NONBLOCK: a fifo that took the place of a file must not block the run.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return os.open(name, flags | os.O_NOATIME, dir_fd=fd)
        except PermissionError:
            # O_NOATIME is for the owner or root, and the status page is neither.
            return os.open(name, flags, dir_fd=fd)

    def unlink(self, path):
        fd, name = self.parent(path)
        os.unlink(name, dir_fd=fd)

    def close(self):
        os.close(self.last[1])
        os.close(self.fd)

    def walk(self):
        """All below, as (path in bytes, DirEntry), each directory in the order readdir gives it."""
        stack = [b""]
        while stack:
            directory = stack.pop()
            # Use a descriptor of its own: the cached one is closed when the caller opens something elsewhere.
            fd = os.dup(self.parent(directory + b"/x")[0])
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        name = os.fsencode(entry.name)
                        path = directory + b"/" + name if directory else name
                        yield path, entry
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(path)
            finally:
                os.close(fd)
