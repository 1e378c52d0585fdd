# SPDX-License-Identifier: GPL-2.0-only
"""One backup of one host, from the lock to a snapshot that counts."""

import contextlib
import json
import os
import sys
import time

from . import report, retention, transfer, verify, warm
from .errors import DAMAGED, BackupError, Interrupted
from .store import Flusher, check_space, check_volume, write_file
from .sums import Sums

# rsync takes 20 directories to link to; two are kept for good snapshots.
PARTIALS = 12


def say(text):
    print(text, flush=True)


def bases(store):
    """Good snapshots to link to: the newest by name, and the one made last if the clock made that another."""
    names = store.snapshots()
    last = store.status().get("last_good")
    found = [last] if last in names else []
    return [store.path / n for n in dict.fromkeys(found + names[-1:])]


def use_partials(store, sums, flusher):
    """What interrupted runs left, newest first, checked and fit to be linked to."""
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
        say(f"{store.name}: {right} files of it need not be fetched again; {removed} not known to be right removed")
    return [store.path / f"{n}.partial" for n in reversed(names)]


def lists_root(host):
    """Whether rsync's list of a host has the directory itself in it, as `.`: a whole module, or /."""
    return any("/" not in p.strip("/") and (host.method == "rsyncd" or p == "/") for p in host.paths)


def fetch_damaged(base, host, store, name, sums, linked, lock_fd):
    """Fetch again what rsync took from older snapshots and a verification has found damaged; (paths, some were gone).

    Linked once more, the file would be as wrong in the new snapshot, and never be fetched while it stays the same.
    """
    root = store.path / f"{name}.partial"
    dropped = verify.drop_damaged(root, store.sums_of(name), sums, linked)
    if not dropped:
        return dropped, False
    say(f"{store.name}: {len(dropped)} files were found damaged in older snapshots: fetching them again")
    listed = store.meta / f"{name}.again"
    listed.write_bytes(b"".join(path + b"\0" for path in sorted(dropped)))
    try:
        # Nothing to link to: what is like them is what is damaged.
        transfer.transfer(base, host, root, [], store, name, lock_fd, listed)
    finally:
        listed.unlink()
    gone = [path for path in dropped if not os.path.lexists(os.path.join(os.fsencode(root), path))]
    for path in gone[:20]:
        say(f"{store.name}: {verify.show(path)} is no longer on the client")
    return dropped, bool(gone)


def check(store, host, name, outcome, sums, linked, again):
    """Raise unless what is on disk is what came."""
    root = store.path / f"{name}.partial"
    found = verify.new_files(root, store.sums_of(name), sums, linked, f"{store.name} {name}", again=again)
    verify.demand(found, f"{store.name}: reading back what was fetched")
    names = verify.count(root) + lists_root(host)
    # Files that went on the client while it was read are in its list, not here, and no fault.
    if outcome.names is not None and not outcome.vanished and names != outcome.names:
        raise BackupError(f"{store.name}: the client listed {outcome.names} names and {names} are here; "
                          "this is not counted as a good snapshot", DAMAGED)  # fmt: skip
    return found, names


def fetch(base, host, store, lock_fd, status, step):
    """Everything that needs the client and the volume; the name of the new good snapshot."""
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
        step("fetching")
        try:
            outcome = transfer.transfer(base, host, dest, [*partials, *good], store, name, lock_fd)
        except BaseException:
            if not any(dest.iterdir()):
                # The client was not even reached: nothing to resume.
                dest.rmdir()
                store.sums_of(name).unlink(missing_ok=True)
            raise
        again, gone = fetch_damaged(base, host, store, name, sums, [*partials, *good], lock_fd)
        outcome.vanished |= gone
        step("writing to disk")
        flusher.flush()
        step("verifying")
        found, names = check(store, host, name, outcome, sums, [*partials, *good], again)
        sums.commit()
        record = {"name": name, "started": int(started), "ended": int(time.time()), "names": names,
                  "new_files": found.right, "new_bytes": found.bytes, "vanished": outcome.vanished}  # fmt: skip
        write_file(store.record_path(name), json.dumps(record, indent=1, sort_keys=True) + "\n")
        flusher.flush()
        store.publish(name)
        store.sums_of(name).unlink(missing_ok=True)
        status.update(last_good=name, last_good_time=record["ended"], files=found.right, bytes=found.bytes, names=names)
        say(f"{store.name}: {name} is good: {names} names, {found.right} new files, {found.bytes >> 20} MiB, read back")
    finally:
        sums.close()
        flusher.close()
    for path in partials:
        store.remove(path.name.removesuffix(".partial"), ".partial")
    store.remove_parts()
    return name


def backup(base, host, store, wait):
    """Make a snapshot, then prune. Raises BackupError; status and metrics are written whatever happens.

    wait: seconds for what works on the host, such as a verification, to end.
    """
    check_volume(base)
    with store.lock(wait) as lock_fd:
        began = time.time()
        status = {**store.status(), "state": "running", "began": int(began), "message": "", "pid": os.getpid()}

        def step(what):
            status["phase"] = what
            # On a full disk it is the space that is to be told of, not that this could not be written.
            with contextlib.suppress(OSError):
                store.write_status(status)

        try:
            step("preparing")
            store.finish_removals()
            make_room(base, host, store)
            fetch(base, host, store, lock_fd, status, step)
            status.update(state="ok", message="")
        except BackupError as err:
            status.update(state=report.name_of(err.code), message=str(err))
            raise
        except OSError as err:
            status.update(state="failed", message=str(err))
            code = 4 if err.errno in (28, 122) else 1
            status["state"] = report.name_of(code)
            raise BackupError(f"{store.name}: {err}. What was fetched is kept for the next run", code) from err
        finally:
            if status["state"] == "running":
                status.update(state="failed", message="the program failed; see the journal")
            if status["state"] == "ok":
                status["prune_message"] = prune(store, host)
            status.update(ended=int(time.time()), seconds=round(time.time() - began, 1), phase="")
            finish(store, status)
    if status["prune_message"]:
        raise BackupError(f"the snapshot is good, but: {status['prune_message']}")


def finish(store, status):
    """Write the status; a full disk must not hide the error that is being told."""
    try:
        warning = report.publish(store, status)
    except OSError as err:
        warning = f"the status could not be written: {err}"
    if warning:
        print(f"{store.name}: {warning}", file=sys.stderr)


def make_room(base, host, store):
    """Raise if the volume is too full, after pruning what retention lets go anyway."""
    try:
        check_space(base, store.path)
    except BackupError:
        try:
            retention.prune(store, host.keep, say)
        except BackupError as err:
            print(f"{store.name}: {err}", file=sys.stderr)
        check_space(base, store.path)


def prune(store, host):
    """Prune after a good run; why it was not done, or an empty text."""
    try:
        retention.prune(store, host.keep, say)
    except Interrupted:
        return ""
    except BackupError as err:
        return str(err)
    return ""


def verify_host(store, names, adopt):
    """Read snapshots and compare; returns Found of all. What is damaged is noted in the record of the snapshot."""
    since, total = time.time(), verify.Found()
    with store.lock():
        sums = Sums(store.meta / "sums.sqlite")
        try:
            for name in names:
                found = verify.snapshot(store.path / name, sums, since, adopt, f"{store.name} {name}")
                record = {**store.record(name), "verified": int(time.time()), "damaged": found.bad,
                          "damaged_files": found.wrong}  # fmt: skip
                write_file(store.record_path(name), json.dumps(record, indent=1, sort_keys=True) + "\n")
                say(f"{store.name} {name}: {found.right + found.skipped} files right, {found.wrong} damaged, "
                    f"{found.unknown} of which nothing is known")  # fmt: skip
                for key in ("right", "wrong", "unknown", "skipped", "bytes"):
                    setattr(total, key, getattr(total, key) + getattr(found, key))
                total.bad += [f"{name}/{line}" for line in found.bad]
        finally:
            sums.close()
            status = {**store.status(), "verified": int(time.time()), "damaged_files": store.damaged()}
            finish(store, status)
    return total
