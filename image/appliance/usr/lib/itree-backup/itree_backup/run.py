# SPDX-License-Identifier: GPL-2.0-only
"""One backup of one host, from the lock to a snapshot that counts."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time

from . import hooks, outbox, quota, report, retention, transfer, verify, warm
from .errors import DAMAGED, GAPS, REFUSED, BackupError, Interrupted
from .store import GAPS as WITH_GAPS
from .store import Flusher, Tree, check_space, check_volume, damaged_in, free_of, state_directory
from .sums import Sums
from .transfer import show

# rsync accepts 20 directories to link to; the rest is for good snapshots.
PARTIALS = 10
LEAST_NAMES, LEAST_BYTES = 20, 1 << 20  # a smaller loss never counts as a fall, whatever its share
PASSES = 3  # how often to look again for names that were renamed during the run


def say(text):
    print(text, flush=True)


def bases(store):
    """Snapshots to link to: the newest good one by name; the one made last, if a wrong clock made that another; and
    the newest of all if it has gaps, since the files in it are just as good."""
    names = store.snapshots()
    last = store.status().get("last_good")
    found = [last] if last in names else []
    return [store.path / n for n in dict.fromkeys(found + names[-1:] + store.every()[-1:])]


def use_partials(store, sums, flusher):
    """Directories that interrupted runs left, newest first, checked so that they can be linked to."""
    names = store.names(".partial")
    for name in names[:-PARTIALS]:
        store.remove(name, ".partial")
    names = names[-PARTIALS:]
    if names:
        # What is read back must come from the disk.
        flusher.flush()
    for name in names:
        say(f"{store.name}: an interrupted run of {name}: checking what it left")
        right, removed = verify.settle(store.path / f"{name}.partial", store.sums_of(name), sums, bases(store),
                                       f"{store.name} {name}")  # fmt: skip
        say(f"{store.name}: {right} of its files need not be fetched again; {removed} unverified ones were removed")
    return [store.path / f"{n}.partial" for n in reversed(names)]


def lists_root(host):
    """Whether rsync's list of a host has the directory itself in it, as `.`: a whole module, or /."""
    return any("/" not in p.strip("/") and (host.method == "rsyncd" or p == "/") for p in host.paths)


def fetch_damaged(base, host, store, name, sums, linked, lock_fd):
    """Fetch again the files that rsync linked although a verification has found them damaged; (paths, those gone).

    Otherwise the new snapshot would share the damage, and a file that never changes would never be fetched again.
    """
    root = store.path / f"{name}.partial"
    dropped = verify.drop_damaged(root, store.sums_of(name), sums, linked)
    if not dropped:
        return dropped, []
    say(f"{store.name}: {len(dropped)} files were found damaged in older snapshots: fetching them again")
    # No directories to link to: rsync would find the damaged files there again.
    transfer.transfer(base, host, root, [], store, name, lock_fd, transfer.listing(sorted(dropped)))
    gone = [path for path in dropped if not os.path.lexists(os.path.join(os.fsencode(root), path))]
    for path in gone[:20]:
        say(f"{store.name}: {show(path)} is no longer on the client")
    return dropped, gone


def full_files(base):
    """Lists of names, one for each file of a snapshot whose inode cannot take as many links again."""
    most, found = os.pathconf(base, "PC_LINK_MAX"), {}
    with contextlib.closing(Tree(base)) as tree:
        for path, entry in tree.walk():
            if entry.is_file(follow_symlinks=False):
                got = tree.lstat(path)
                if got.st_nlink > most // 100:
                    found.setdefault((got.st_ino, got.st_nlink), []).append(path)
    # Leave room for links that the client has added.
    return [paths for (_, links), paths in found.items() if links + len(paths) * 1.1 + 100 > most]


def copy_full(base, fresh, sums):
    """Copy such files to an empty directory that rsync links to before all others; returns how many there were.

    rsync links the first name to a copy and the others to that one, so each copy gets only a share of the names.
    The copies are compared with the recorded checksums.
    """
    most, found = os.pathconf(base, "PC_LINK_MAX"), full_files(base)
    with contextlib.closing(Tree(base)) as tree, contextlib.closing(Tree(fresh)) as new:
        for paths in found:
            share = max(1, most - 1000 - int(len(paths) * 1.1))
            key = verify.identity(tree, paths[0])
            known = sums.get(*key) if key else None
            for at in range(0, len(paths), share):
                first, *others = paths[at : at + share]
                for path in (first, *others):
                    os.makedirs(os.path.join(os.fsencode(fresh), os.path.dirname(path)), exist_ok=True)
                copy = os.path.join(os.fsencode(fresh), first)
                subprocess.run(["cp", "--archive", "--", os.path.join(os.fsencode(base), first), copy], check=True)
                ino, gen, md5, _ = verify.read_one(new, first)
                if known is None or known[0] != md5:
                    os.unlink(copy)  # rsync fetches it from the client
                    continue
                sums.put(ino, gen, md5, time.time())
                for other in others:
                    os.link(copy, os.path.join(os.fsencode(fresh), other))
    return len(found)


def transfer_all(base, host, store, name, linked, sums, lock_fd, checksums=False):
    """The first, whole transfer of a run into NAME.partial, which is empty; its Outcome."""
    dest = store.path / f"{name}.partial"
    try:
        return transfer.transfer(base, host, dest, linked, store, name, lock_fd, checksums=checksums)
    except transfer.TooManyLinks as err:
        say(f"{err}; starting again with copies of such files")
    store.remove(name, ".partial")
    dest.mkdir(mode=0o700)
    fresh = store.meta / "fresh"
    fresh.mkdir(mode=0o700)
    quota.share(store, fresh)
    try:
        copied = sum(copy_full(path, fresh, sums) for path in linked[-1:])
        say(f"{store.name}: {copied} files copied")
        return transfer.transfer(base, host, dest, [fresh, *linked], store, name, lock_fd, checksums=checksums)
    finally:
        shutil.rmtree(fresh)


def directories(tree, places):
    """(place, name) of the directories in these directories of a snapshot."""
    found = set()
    for place in places:
        with contextlib.suppress(OSError), os.scandir(tree.parent(place + b"/x")[0]) as entries:
            found |= {(place, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)}
    return found


def remove_new(tree, places, before):
    """Remove directories that the client created after the list was made: they came without their contents."""
    for place, name in directories(tree, places) - before:
        with contextlib.suppress(OSError):
            fd = tree.parent(place + b"/x")[0]
            was = os.fstat(fd)
            os.rmdir(name, dir_fd=fd)
            os.utime(fd, ns=(was.st_atime_ns, was.st_mtime_ns))


def fetch_renamed(base, host, store, name, outcome, linked, lock_fd):
    """Look again where names vanished during the transfer: a mail that was read meanwhile has another name now.

    Changes outcome, whose `vanished` then holds the names that vanished again.
    """
    root = store.path / f"{name}.partial"
    for _ in range(PASSES):
        if not (outcome.vanished or outcome.trees):
            return
        # A client's names must not lead out of its snapshot.
        found = {os.path.dirname(transfer.plain_name(n)) for n in outcome.vanished}
        places = sorted(p for p in found if b".." not in p.split(b"/"))
        words, kind = transfer.listing(p + b"/" for p in places), "files"
        what = f"in {len(places)} directories"
        if outcome.trees or not places:
            # Only a pass over everything can show where they went.
            words, kind, what = transfer.names_of(host), "below", "everywhere"
        say(f"{store.name}: {len(outcome.vanished)} names vanished while they were read: looking again {what}")
        with contextlib.closing(Tree(root)) as tree:
            before = directories(tree, places)
            more = transfer.transfer(base, host, root, linked, store, name, lock_fd, words, kind)
            if kind == "files":
                remove_new(tree, places, before)
        outcome.add(more)


def check(store, host, name, outcome, sums, linked, again):
    """Raise unless what is on disk is what came."""
    root = store.path / f"{name}.partial"
    retried, gaps = ({transfer.plain_name(n) for n in found} for found in (outcome.retried, outcome.gaps))
    found = verify.new_files(root, store.sums_of(name), sums, linked, f"{store.name} {name}", again=again,
                             retried=retried, gaps=gaps)  # fmt: skip
    verify.demand(found, f"{store.name}: reading back what was fetched")
    names = verify.count(root) + lists_root(host)
    # Without a number, files have vanished on the client: they are in its list and not here, which is no fault.
    if outcome.names is not None and names != outcome.names:
        raise BackupError(f"{store.name}: the client listed {outcome.names} names and {names} are here; "
                          "this is not counted as a good snapshot", DAMAGED)  # fmt: skip
    return found, names


def check_links(store, host, name):
    """Raise if a configured path is a symbolic link: the backup would lack what it points to."""
    with contextlib.closing(Tree(store.path / f"{name}.partial")) as tree:
        for path in host.paths:
            plain = transfer.place_of(host, path)
            try:
                linked = plain and not path.endswith("/") and stat.S_ISLNK(tree.lstat(plain).st_mode)
            except OSError:
                continue
            if linked:
                raise BackupError(f"{store.name}: {path} is a symbolic link on the client, and its backup would be the "
                                  "link alone: name the directory it points to", REFUSED)  # fmt: skip


def kept_share(old, new):
    """The part, from 0 to 1, of the files two snapshots could share that the newer one has unchanged; by records."""
    both = min(old.get("files", 0), new["files"])
    return max(new["files"] - new["new_files"], 0) / both if both >= LEAST_NAMES else 1.0


def watch_fall(store, host, new, last):
    """Hold the older snapshots if much vanished or changed at once: a disk that is not mounted, a client that was wiped
    or encrypted.

    new: the record of the new snapshot; last: name of the newest good one before it. The two are compared; during a
    hold, the new one is compared with the numbers before the fall. Files that come back end the hold. A hold for
    changed files ends only by `accept`.
    """
    record, held = store.record(last), store.held_for()
    if held.get("changed"):
        return
    before = held or {"names": record.get("names", 0), "files": record.get("files", 0),
                      "bytes": record.get("total_bytes", 0), "last": last}  # fmt: skip
    now = {"names": new["names"], "files": new["files"], "bytes": new["total_bytes"]}
    lost = [f"{had} {unit} in {before.get('last', last)} and has {now[unit]} now" for unit, had in before.items()
            if unit in now and had - now[unit] >= (LEAST_BYTES if unit == "bytes" else LEAST_NAMES)
            and now[unit] < had * (1 - host.fall / 100)]  # fmt: skip
    if lost:
        store.hold(f"the client had {' and '.join(lost)}, less than [hold] fall_percent allows", before)
    elif held:
        store.hold("")
    # Where most files change each night, that is normal.
    elif new["kept_share"] < record.get("kept_share", 1.0) * (1 - host.fall / 100):
        store.hold(f"only {new['kept_share']:.0%} of the files are as in {last}, less than [hold] fall_percent "
                   "allows", {**before, "changed": True})  # fmt: skip


def lines_of(found, most=1000):
    """The first of {name: why} as lines for people."""
    return [show(f"{name}: {why}") for name, why in sorted(found.items())[:most]]


def remark(store, record):
    """Report what a new snapshot lacks although it counts."""
    if record["vanished"]:
        say(f"{store.name}: {record['vanished']} names vanished before they could be read")
    if record["left_out"]:
        say(f"{store.name}: attributes that cannot be stored here are left out: {', '.join(record['left_out'])}")
    for line in record["lost_attributes"][:20]:
        say(f"{store.name}: an attribute is left out: {line}")


def fetch(base, host, store, lock_fd, status, step):
    """Everything that needs the client and the volume; the record of the new snapshot."""
    started = time.time()
    flusher = Flusher(store.path)
    sums = Sums(store.meta / "sums.sqlite")
    try:
        step("checking what an interrupted run left")
        partials = use_partials(store, sums, flusher)
        good = bases(store)
        name = store.new_name()
        dest = store.path / f"{name}.partial"
        dest.mkdir(mode=0o700)
        if good:
            step("looking at the last snapshot")
            warm.warm(good[0], store.name)
        # By size and time alone, rsync misses a file that a program changed and gave its old time back.
        checksums = bool(host.checksum) and started - status.get("checksummed", 0) >= host.checksum * 86400 - 43200
        step("fetching, comparing by checksums" if checksums else "fetching")
        try:
            outcome = transfer_all(base, host, store, name, [*partials, *good], sums, lock_fd, checksums)
        except BaseException:
            if not any(dest.iterdir()):
                # The client was not even reached: nothing to resume.
                dest.rmdir()
                store.sums_of(name).unlink(missing_ok=True)
            raise
        if outcome.vanished or outcome.gaps:
            outcome.names = None  # the list has names that are not here
        fetch_renamed(base, host, store, name, outcome, [*partials, *good], lock_fd)
        # rsync sends a file that changed during the transfer again. A file that is here is no gap.
        outcome.gaps = {n: why for n, why in outcome.gaps.items()
                        if not os.path.lexists(os.path.join(os.fsencode(dest), transfer.plain_name(n)))}  # fmt: skip
        again, gone = fetch_damaged(base, host, store, name, sums, [*partials, *good], lock_fd)
        if gone:
            outcome.names = None
        store.leave_out(outcome.refused)
        check_links(store, host, name)
        step("writing to disk")
        flusher.flush()
        step("verifying")
        found, names = check(store, host, name, outcome, sums, [*partials, *good], again)
        sums.commit()
        record = {"name": name, "started": int(started), "ended": int(time.time()), "names": names,
                  "files": outcome.regular, "total_bytes": outcome.total, "new_files": found.right,
                  "new_bytes": found.bytes,
                  "vanished": len(outcome.vanished) + len(gone), "root": lists_root(host),
                  "free_bytes": free_of(base)[0],
                  "gaps": len(outcome.gaps), "gap_list": lines_of(outcome.gaps), "left_out": store.left_out(),
                  "lost_attributes": lines_of({f"{n.removeprefix(f'{dest}/')}: {a}": why
                                               for (n, a), why in outcome.lost.items()})}  # fmt: skip
        last = store.status().get("last_good", "")
        record["kept_share"] = round(kept_share(store.record(last), record), 3)
        store.write_record(name, record)
        flusher.flush()
        store.publish(name + WITH_GAPS * bool(outcome.gaps))
        store.sums_of(name).unlink(missing_ok=True)
        status.update(files=found.right, bytes=found.bytes, names=names, gaps=len(outcome.gaps))
        watch_fall(store, host, record, last)
        if not outcome.gaps:
            status.update(last_good=name, last_good_time=record["ended"])
            if checksums:
                status["checksummed"] = int(started)
        what = "has gaps" if outcome.gaps else "is good"
        say(f"{store.name}: {name} {what}: {names} names, {found.right} new files, {found.bytes >> 20} MiB, read back")
        remark(store, record)
    finally:
        sums.close()
        flusher.close()
    for path in partials:
        store.remove(path.name.removesuffix(".partial"), ".partial")
    store.remove_parts()
    return record


@contextlib.contextmanager
def turn(base, name):
    """Wait until fewer than [volume] at_once hosts are backed up, and count as one of them.

    Each run locks one of that many files; the kernel releases the lock however the run ends.
    """
    directory = state_directory() / "turns"
    directory.mkdir(parents=True, exist_ok=True)
    waited = False
    with contextlib.ExitStack() as stack:
        while True:
            for n in range(base.at_once):
                handle = open(directory / str(n), "a")  # noqa: SIM115
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    handle.close()
                    continue
                stack.enter_context(handle)
                yield
                return
            if not waited:
                say(f"{name}: waiting for one of {base.at_once} other backups to end ([volume] at_once)")
                waited = True
            time.sleep(1)


def backup(base, host, store, wait):
    """Make a snapshot, then prune. Raises BackupError; status and metrics are written whatever happens.

    wait: seconds to wait for other work on the host, such as a verification.
    """
    check_volume(base)
    # Take the lock first: a run that waits for a verification of its host must not keep a turn from other hosts.
    with store.lock(wait) as lock_fd, turn(base, store.name):
        began = time.time()
        status = {**store.status(), "state": "running", "began": int(began), "message": "", "pid": os.getpid(),
                  "hook_message": ""}  # fmt: skip
        hooked = False

        def step(what):
            status["phase"] = what
            # On a full disk the run must report the missing space, not that the status could not be written.
            with contextlib.suppress(OSError):
                store.write_status(status)

        try:
            quota.obey()
            step("preparing")
            quota.settle(store, host.quota)
            store.finish_removals()
            make_room(base, host, store)
            hooked = True
            step("running [host] before on the client")
            hooks.before(base, host)
            record = fetch(base, host, store, lock_fd, status, step)
            if record["gaps"]:
                listed = "".join(f"\n    {line}" for line in record["gap_list"][:20])
                raise BackupError(
                    f"{store.name}: the client could not give {record['gaps']} of its files. "
                    f"{record['name']}{WITH_GAPS} has the others; it is kept and listed, and does not count as good. "
                    f"Repair these files, or exclude them:{listed}",
                    GAPS,
                )
            status.update(state="ok", message="")
        except BackupError as err:
            status.update(state=report.name_of(err.code), message=str(err))
            raise
        except OSError as err:
            status.update(state="failed", message=str(err))
            code = 4 if err.errno in (28, 122) else 1
            status["state"] = report.name_of(code)
            told_ = quota.exceeded(store.name) if err.errno == errno.EDQUOT else BackupError(
                f"{store.name}: {err}. What was fetched is kept for the next run", code)  # fmt: skip
            status["message"] = str(told_)
            raise told_ from err
        finally:
            if status["state"] == "running":
                status.update(state="failed", message="the program failed; see the journal")
            if hooked:
                status["hook_message"] = hooks.after(base, host, status["state"])
            if status["state"] in ("ok", report.name_of(GAPS)):
                status["prune_message"] = prune(store, host)
            status.update(ended=int(time.time()), seconds=round(time.time() - began, 1), phase="")
            finish(store, status)
            if status["hook_message"] and status["state"] != "ok":
                print(status["hook_message"], file=sys.stderr)
    wrong = [text for text in (status["hook_message"], status["prune_message"]) if text]
    if wrong:
        raise BackupError("the snapshot is good, but: " + "\n".join(wrong))
    missed = outbox.beat(host.heartbeat) if host.heartbeat else ""
    if missed:
        say(f"{store.name}: {missed}")


def finish(store, status):
    """Write the status; a full disk must not hide the error that is being reported."""
    try:
        warning = report.publish(store, status)
    except OSError as err:
        warning = f"the status could not be written: {err}"
    if warning:
        print(f"{store.name}: {warning}", file=sys.stderr)


def make_room(base, host, store):
    """Raise if the volume or the host's quota is too full even after pruning."""
    try:
        check_space(base)
        quota.check(store)
    except BackupError:
        try:
            retention.prune(store, host.keep, say)
        except BackupError as err:
            print(f"{store.name}: {err}", file=sys.stderr)
        check_space(base)
        if quota.is_full(store):
            # The partial copy of one endless file may be what fills it.
            store.remove_parts()
        quota.check(store)


def prune(store, host):
    """Prune after a good run; returns why that failed, or an empty text."""
    try:
        retention.prune(store, host.keep, say)
    except Interrupted:
        return ""
    except BackupError as err:
        return str(err)
    return ""


def verify_due(store, cycle):
    """Read the files of a host that are due; cycle: days within which each is to be read. Returns Found of them."""
    now, total = time.time(), verify.Found()
    with store.lock(), contextlib.closing(Sums(store.meta / "sums.sqlite")) as sums:
        due = sums.due(cycle, now)
        number = len(due)
        for name in reversed(store.every()):
            if not due:
                break
            found = verify.snapshot(store.path / name, sums, now, False, f"{store.name} {name}", due)
            if found.wrong:
                # Earlier damage stays in the record until a verification of the whole snapshot finds none.
                record = store.record(name)
                old = record.get("damaged", [])
                new = [line for line in found.bad if line not in old]
                known = len(found.bad) - len(new)
                record.update(damaged=(old + new)[:100], damaged_files=damaged_in(record) + found.wrong - known)
                store.write_record(name, record)
            total.add(found, name)
        # The remaining records belong to removed snapshots. Kept, they would be due each day, ahead of existing files.
        # Those of interrupted runs stay.
        for name in store.names(".partial") if due else ():
            with contextlib.closing(Tree(store.path / f"{name}.partial")) as tree:
                due -= {entry.inode() for _, entry in tree.walk()}
        for ino in due:
            sums.forget(ino)
        sums.commit()
        say(f"{store.name}: {total.right} of {number - len(due)} files that were due are right, {total.wrong} damaged")
        finish(store, {**store.status(), "verified": int(now), "damaged_files": store.damaged()})
    return total


def verify_host(store, names, adopt):
    """Read snapshots and compare; returns Found of all. Damage is noted in the record of the snapshot."""
    since, total = time.time(), verify.Found()
    with store.lock():
        sums = Sums(store.meta / "sums.sqlite")
        try:
            for name in names:
                found = verify.snapshot(store.path / name, sums, since, adopt, f"{store.name} {name}")
                record = {**store.record(name), "verified": int(time.time()), "damaged": found.bad,
                          "damaged_files": found.wrong}  # fmt: skip
                store.write_record(name, record)
                say(f"{store.name} {name}: {found.right + found.skipped} files right, {found.wrong} damaged, "
                    f"{found.unknown} without a recorded checksum")  # fmt: skip
                total.add(found, name)
        finally:
            sums.close()
            status = {**store.status(), "verified": int(time.time()), "damaged_files": store.damaged()}
            finish(store, status)
    return total
