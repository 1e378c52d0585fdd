# SPDX-License-Identifier: GPL-2.0-only
"""rsync that goes in disk order, alone and with an unpatched one at the other end."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import (
    AHEAD_CALLS,
    asked_ahead,
    built,
    contents,
    falls,
    first_extent,
    forget,
    in_memory,
    loop_mounted,
    make_many,
    named_in_order,
    run,
)

SYSTEM = "/usr/bin/rsync"
STATS = ("lstat", "stat", "newfstatat", "statx")


@pytest.fixture(scope="module")
def rsync():
    return built("bin/rsync")


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A remote shell for rsync that stays here: drops the host's name."""
    path = tmp_path_factory.mktemp("shell") / "rsh"
    path.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    path.chmod(0o755)
    return path


def trace(tmp_path, calls, *argv, strace=(), **kwargs):
    out = tmp_path / "trace"
    run("strace", "-f", "-qq", *strace, "-o", out, "-e", f"trace={','.join('?' + c for c in calls)}", *argv, **kwargs)
    return out


def test_list_in_inode_order(rsync, many, tmp_path):
    """lstat() goes up through the inodes; off, and in the unpatched one, as the directory does."""
    orders = {}
    for name, env in (("on", {}), ("off", {"DISKORDER": "off"}), ("little", {"DISKORDER_MEMORY": "1"})):
        out = trace(tmp_path, STATS, rsync, "-rn", f"{many}/", tmp_path / "nowhere", env=env)
        orders[name] = named_in_order(out, STATS, many)
        assert len(orders[name]) == 5000
    numbers = {name: [os.stat(many / n).st_ino for n in names] for name, names in orders.items()}
    assert falls(numbers["on"]) <= 2
    assert falls(numbers["little"]) <= 2
    assert falls(numbers["off"]) > 1000
    assert orders["off"] == [e.name for e in os.scandir(many)]


@pytest.mark.parametrize("extra", [(), ("--no-inc-recursive",), ("-c",), ("--delete", "-R")])
def test_same_list(rsync, many, tree, tmp_path, extra):
    """What is listed does not depend on the order in which it was looked at."""
    argv = ["-ain", *extra, f"{tree}/", f"{many}/", tmp_path / "nowhere"]
    ours = run(rsync, *argv)
    assert ours == run(rsync, *argv, env={"DISKORDER": "off"})
    assert len(ours.splitlines()) > 5000


@pytest.mark.parametrize("ends", ["alone", "patched sends", "patched receives"])
@pytest.mark.parametrize("extra", [(), ("--no-inc-recursive",), ("--protocol=29",), ("-z", "--checksum")])
def test_transfers(rsync, shell, tree, ext4, ends, extra):
    """Hard links, holes, attributes; then once more over what is there, some of it changed."""
    out = ext4 / "copy"
    here, there = (SYSTEM, rsync) if ends == "patched receives" else (rsync, SYSTEM)
    argv = [here, "-aHSX", "--delete", *(["-e", shell, f"--rsync-path={there}"] * (ends != "alone")), *extra]
    target = out if ends == "alone" else f"x:{out}"
    if "--protocol=29" in extra:  # knows no X, and no fractions of a second
        argv[1] = "-aHS"
    forget(tree)
    try:
        run(*argv, f"{tree}/", f"{target}/")
        got, want = contents(out), contents(tree)
        if "--protocol=29" in extra:
            for side in (got, want):
                for what in side[0].values():
                    what[3] //= 10**9
                    what[:] = [w for w in what if not isinstance(w, dict)]
        assert got == want
        (out / "d" / "f9").write_text("changed")
        (out / "d" / "more").write_text("not in the source")
        (out / "d" / "f10").unlink()
        (out / "d" / "f300").write_bytes(b"x" + (out / "d" / "f300").read_bytes()[1:])
        run(*argv, f"{tree}/", f"{target}/")
        assert contents(out)[0].keys() == want[0].keys()
        assert (out / "d" / "f9").read_text() == (tree / "d" / "f9").read_text()
        assert (out / "d" / "f300").read_bytes() == (tree / "d" / "f300").read_bytes()
    finally:
        shutil.rmtree(out, ignore_errors=True)


@contextlib.contextmanager
def daemon(program, folder, tmp_path):
    """Run an rsync daemon on loopback that serves folder as the module "all". Yields the module's URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "rsyncd.conf"
    config.write_text(
        f"use chroot = no\nmunge symlinks = no\nuid = {os.geteuid()}\ngid = {os.getegid()}\n"
        f"[all]\npath = {folder}\nread only = no\n"
    )
    argv = [program, "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}", f"--config={config}",
            f"--log-file={tmp_path}/log"]  # fmt: skip
    process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(600):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield f"rsync://127.0.0.1:{port}/all"
    finally:
        # The program may be a tracer, whose end would not be the daemon's.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@pytest.mark.parametrize("pull", [False, True], ids=["pushed", "pulled"])
@pytest.mark.parametrize("ours", ["sends", "receives"])
def test_daemon(rsync, tree, many, ext4, tmp_path, ours, pull):
    """Over TCP, with an unpatched rsync at the other end: the trees are equal, and the patched sender reads ahead."""
    out = ext4 / "served"
    out.mkdir()
    sender, receiver = (rsync, SYSTEM) if ours == "sends" else (SYSTEM, rsync)
    here, there = (receiver, sender) if pull else (sender, receiver)
    calls = ["strace", "-f", "-qq", "-y", "-o", tmp_path / "trace", "-e", f"trace={','.join(AHEAD_CALLS)}"]
    wrapper = tmp_path / "traced"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(map(str, calls))} {there if pull else here} "$@"\n')
    wrapper.chmod(0o755)
    here, there = (here, wrapper) if pull else (wrapper, there)
    try:
        for source in (tree, many):
            forget(source)
            copy = out / source.name
            with daemon(there, ext4, tmp_path) as url:
                served = f"{url}/{(source if pull else copy).relative_to(ext4)}/"
                run(here, "-aHSX", *((served, f"{copy}/") if pull else (f"{source}/", served)))
            assert contents(copy) == contents(source)
        assert (len(asked_of(tmp_path / "trace")) > 4000) == (ours == "sends")
    finally:
        shutil.rmtree(out)


@pytest.fixture(scope="module")
def some(ext4):
    """1,200 files with attributes that do not fit a file list, data in no order of theirs."""
    where = ext4 / "some"
    where.mkdir()
    rng = random.Random(7)
    for _ in range(1200):
        name = where / f"{rng.getrandbits(64):016x}.msg"
        name.write_bytes(rng.randbytes(rng.randint(1, 9000)))
        os.setxattr(name, "user.long", rng.randbytes(60))
    os.sync()
    return where


def sent_ahead(out, folder):
    """From a trace of openat and fadvise: the files read ahead, in order, and the most bytes and files ahead at a time.

    A file is opened twice: to ask where it lies and to be read ahead, which it stays open for, and to be sent.
    """
    names, opened, waiting, most = [], {}, {}, (0, 0)
    for line in pathlib.Path(out).read_text(errors="replace").splitlines():
        found = re.search(rf"<{re.escape(str(folder))}/([^/>]*)>", line.split("AT_FDCWD<")[-1])
        if not found:
            continue
        name = found[1]
        if "openat(" in line:
            opened[name] = opened.get(name, 0) + 1
            if name in waiting and opened[name] == 2:
                del waiting[name]
        elif asked_ahead(line):
            names.append(name)
            waiting[name] = asked_ahead(line)[1]
            most = max(most[0], sum(waiting.values())), max(most[1], len(waiting))
    return names, *most


AHEAD = [
    (),
    ("-z",),  # with --checksum the sender has read them all, and they are in memory
    ("-I", "--no-whole-file"),
    ("--append",),
    ("-X",),
    ("-X", "--protocol=30"),
    ("--protocol=29",),
]


@pytest.mark.parametrize("extra", AHEAD, ids=" ".join)
def test_reads_ahead_in_disk_order(rsync, shell, some, ext4, tmp_path, extra):
    """Requests of every form are understood, whatever comes between them; the other end is unpatched."""
    out = ext4 / "copy"
    shutil.copytree(some, out)
    for name in os.listdir(out):
        os.truncate(out / name, os.stat(out / name).st_size // 2)
        os.utime(out / name, (1, 1))
        os.setxattr(out / name, "user.long", b"old")
    argv = [rsync, "-a", *extra, "-e", shell, f"--rsync-path={SYSTEM}", f"{some}/", f"x:{out}/"]
    forget(some)
    try:
        log = trace(tmp_path, ("openat", *AHEAD_CALLS), *argv, strace=("-y",))
        names, _, _ = sent_ahead(log, some)
        for name in os.listdir(some):
            assert (out / name).read_bytes() == (some / name).read_bytes()
            if "-X" in extra:
                assert os.getxattr(out / name, "user.long") == os.getxattr(some / name, "user.long")
    finally:
        shutil.rmtree(out)
    if "--protocol=29" in extra:
        assert not names
        return
    assert len(set(names)) == len(names) > 1000
    # As they are opened to be sent: below the source's own descriptor, no link followed.
    opened = [t for t in log.read_text().splitlines() if "openat(" in t and f"<{some}/" in t.split("AT_FDCWD<")[-1]]
    assert len(opened) > 2000 and all(f"<{some}>, " in t and "O_NOFOLLOW" in t and "AT_FDCWD" not in t for t in opened)
    # Half of them in no order; the fewer requests wait, the shorter the runs.
    assert falls([first_extent(some / n) for n in names]) < len(names) / 4


def test_reads_nothing_ahead_that_is_in_memory(rsync, many, ext4, tmp_path):
    """A few files are looked at and no more; nor are requests in the buffer, which only shows in the time."""
    out = ext4 / "copy"
    try:
        with in_memory(many.iterdir()):
            log = trace(tmp_path, ("openat", *AHEAD_CALLS, "ioctl"), rsync, "-a", f"{many}/", f"{out}/", strace=("-y",))
        text = log.read_text()
        assert sent_ahead(log, many) == ([], 0, 0) and not text.count("FIEMAP")
        opened = len(re.findall(rf"<{re.escape(str(many))}/[^/>]*>$", text, re.M))
        assert 5000 < opened < 5000 + 16 * 8
        assert contents(out) == contents(many)
    finally:
        shutil.rmtree(out)


def rounds(out):
    """From such a trace: how many files were read ahead at each look."""
    counts = [0]
    for line in pathlib.Path(out).read_text(errors="replace").splitlines():
        if asked_ahead(line):
            counts[-1] += 1
        elif counts[-1] and "FIEMAP" in line:
            counts.append(0)
    return counts


@contextlib.contextmanager
def losing(folder):
    """Meanwhile the data of a directory's files leaves memory all the time."""
    done = threading.Event()

    def lose():
        while not done.is_set():
            forget(folder)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_reads_less_ahead_when_that_is_lost(rsync, many, ext4, tmp_path):
    """Where data leaves memory before it is sent, fewer files are read ahead, then none for a while; all are sent."""
    looks = {}
    for name, around in (("kept", contextlib.nullcontext()), ("lost", losing(many))):
        out = ext4 / f"copy, {name}"
        forget(many)
        try:
            with around:
                log = trace(tmp_path, ("ioctl", *AHEAD_CALLS), rsync, "-a", f"{many}/", f"{out}/", strace=("-y",))
            assert contents(out) == contents(many)
        finally:
            shutil.rmtree(out, ignore_errors=True)
        looks[name] = rounds(log)
    half = {name: counts[len(counts) // 2 :] for name, counts in looks.items()}
    assert max(half["lost"]) < max(looks["kept"]) / 4
    # Of the last 1,000 and more, sent while it rests, none is read ahead.
    assert 2000 < sum(looks["lost"]) < 4000 and sum(looks["kept"]) > 4500
    assert max(half["kept"]) > 2 * 32


@pytest.fixture(scope="module")
def lots(ext4):
    """12,000 files: more than are read ahead by the requests that wait."""
    yield make_many(ext4 / "lots", 12000)
    shutil.rmtree(ext4 / "lots")


def asked_of(log):
    """Names of the files that a trace has read ahead, in that order."""
    found = (asked_ahead(t) for t in pathlib.Path(log).read_text(errors="replace").splitlines())
    return [os.path.basename(f[0]) for f in found if f]


def test_reads_ahead_by_the_list(rsync, lots, ext4, tmp_path):
    """A first copy: all that follow at once, not as many as requests fit the buffer, by inode and in disk order."""
    out = ext4 / "copy"
    forget(lots)
    try:
        log = trace(tmp_path, ("ioctl", *AHEAD_CALLS), rsync, "-a", f"{lots}/", f"{out}/", strace=("-y",))
        assert contents(out) == contents(lots)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    names = asked_of(log)
    assert len(set(names)) == len(names) > 11000
    looks = rounds(log)
    largest = max(looks)
    # A window that is four times the one before has 8,192 files at this point.
    assert largest > 8192, looks
    before = sum(looks[: looks.index(largest)])
    read = names[before : before + largest]
    assert falls([first_extent(lots / n) for n in read]) < 10
    looked = re.findall(r"ioctl\(\d+<[^>]*/([^/>]*)>, FS_IOC_FIEMAP", log.read_text(errors="replace"))
    assert falls([os.stat(lots / n).st_ino for n in looked if n in set(read)]) < 10


def read_for_a_part(rsync, lots, out, missing, tmp_path):
    """Send lots to a receiver that has all files but those in missing. Returns the names of the files read ahead."""
    shutil.copytree(lots, out)
    for name in missing:
        (out / name).unlink()
    forget(lots)
    try:
        log = trace(tmp_path, AHEAD_CALLS, rsync, "-a", f"{lots}/", f"{out}/", strace=("-y",))
        assert contents(out) == contents(lots)
    finally:
        shutil.rmtree(out)
    return asked_of(log)


def test_reads_ahead_no_file_that_the_receiver_has(rsync, lots, ext4, tmp_path):
    """It has every other one: the list says nothing about what it will ask for, and only its requests count."""
    missing = sorted(os.listdir(lots))[::2]
    names = read_for_a_part(rsync, lots, ext4 / "copy", missing, tmp_path)
    assert set(names) <= set(missing) and len(names) > len(missing) / 2


def test_the_receiver_wants_no_more(rsync, lots, ext4, tmp_path):
    """The first quarter is missing there: not more files are read in vain than were sent."""
    missing = sorted(os.listdir(lots))[:3000]
    names = set(read_for_a_part(rsync, lots, ext4 / "copy", missing, tmp_path))
    assert len(names & set(missing)) > 2500 and len(names - set(missing)) < len(missing)


@pytest.mark.parametrize("step", [0, 10, 1], ids=["none", "tenth", "all"])
def test_link_dest(rsync, many, ext4, tmp_path, step):
    """Of the files that none, a tenth or all changed since the last snapshot, only the changed are read ahead."""
    source, last, new = (ext4 / name for name in ("daily", "daily.1", "daily.0"))
    changed = set(sorted(os.listdir(many))[::step] if step else [])
    try:
        for folder in (source, last):
            run("cp", "-a", many, folder)
        for name in changed:
            with open(source / name, "ab") as handle:
                handle.write(b"one more line\n")
        forget(source)
        argv = [rsync, "-a", f"--link-dest={last}", f"{source}/", f"{new}/"]
        names = asked_of(trace(tmp_path, AHEAD_CALLS, *argv, strace=("-y",)))
        assert contents(new)[0].keys() == contents(source)[0].keys()
        for name in os.listdir(source):
            assert (new / name).read_bytes() == (source / name).read_bytes()
            assert (new / name).samefile(last / name) == (name not in changed)
    finally:
        for folder in (source, last, new):
            shutil.rmtree(folder, ignore_errors=True)
    assert set(names) <= changed and len(set(names)) >= len(changed) / 2


def test_space_is_free_when_it_was_sent(rsync, many, ext4, tmp_path):
    """Files that --remove-source-files removed do not stay open: of those read ahead none outlives its sending."""
    top, out = ext4 / "moved", ext4 / "moved to"
    shutil.copytree(many, top)
    forget(top)
    try:
        argv = [rsync, "-a", "--remove-source-files", f"{top}/", f"{out}/"]
        log = trace(tmp_path, ("openat", "close", "unlink", "unlinkat"), *argv, strace=("-y",))
        assert not os.listdir(top) and contents(out)[0].keys() == contents(many)[0].keys()
    finally:
        for path in (top, out):
            shutil.rmtree(path, ignore_errors=True)
    text = log.read_text(errors="replace")
    removed = re.findall(r"unlink(?:at)?\(.*?([0-9a-f]{16}\.msg)\"", text)
    assert len(removed) == 5000
    # strace marks the descriptor of a file that has no name any longer.
    assert not re.findall(rf"close\(\d+<{re.escape(str(top))}/[^>]*\(deleted\)>|close\(\d+<[^>]*>\(deleted\)", text)


def test_reading_ahead_is_bounded(rsync, ext4, tmp_path):
    """8 MiB at each look, the next when half is used: twice that at most, and a file."""
    top, out = ext4 / "big", ext4 / "big copy"
    top.mkdir()
    try:
        for number in range(100):
            with open(top / f"f{number}", "wb") as handle:
                os.posix_fallocate(handle.fileno(), 0, 600 << 10)
        # Within the same second rsync leaves the target's time of a directory as it is.
        os.utime(top, (1, 1))
        forget(top)
        log = trace(tmp_path, ("openat", *AHEAD_CALLS), rsync, "-aS", f"{top}/", f"{out}/", strace=("-y",))
        names, size, _ = sent_ahead(log, top)
        assert len(names) > 80 and 600 << 10 < size < 17 << 20
        off = trace(tmp_path, ("openat", *AHEAD_CALLS), rsync, "-aS", f"{top}/", f"{out}2/", strace=("-y",),
                    env={"DISKORDER": "off"})  # fmt: skip
        assert sent_ahead(off, top) == ([], 0, 0)
        assert contents(top) == contents(out) == contents(ext4 / "big copy2")
    finally:
        for path in (top, out, ext4 / "big copy2"):
            shutil.rmtree(path, ignore_errors=True)


def test_odd_names(rsync, ext4):
    """Bytes that are no text, quotes, line breaks, names as long as they may be."""
    top, out = ext4 / "odd", ext4 / "odd copy"
    top.mkdir()
    names = [b"\xff\xfe", b"new\nline", b" ", b"-rf", b"a\\b", b'"', b"'", b"*", b"n" * 255, "\u4e16".encode() * 80]
    for name in names:
        with open(os.path.join(os.fsencode(top), name), "wb") as handle:
            handle.write(name)
    run(rsync, "-a", f"{top}/", f"{out}/")
    got = {n: (out / os.fsdecode(n)).read_bytes() for n in os.listdir(os.fsencode(out))}
    assert got == {n: n for n in names}


def test_unreadable_directory(rsync, ext4):
    """What cannot be read is told and nothing is deleted for it."""
    top, out = ext4 / "part", ext4 / "part copy"
    (top / "closed").mkdir(parents=True)
    (top / "closed" / "in").write_text("x")
    run(rsync, "-a", f"{top}/", f"{out}/")
    os.chmod(top / "closed", 0)
    argv = [rsync, "-r", "--delete", "part/", "part copy/"]
    if not os.geteuid():  # without root's right to read everything
        argv = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *argv]
    res = run(*argv, ok=False, cwd=ext4)
    assert res.returncode == 23 and "closed" in res.stderr
    assert (out / "closed" / "in").read_text() == "x"


def test_directory_removed_meanwhile(rsync, ext4, tmp_path):
    """Then the kernel says ENOENT, which is its end, no error: files gone from the source are deleted."""
    top, out = ext4 / "gone", ext4 / "gone copy"
    for path in (top, out):
        path.mkdir()
        (path / "stays").write_text("x")
    (out / "goes").write_text("x")
    strace = ("-e", "inject=getdents64:error=ENOENT:when=2+")
    log = trace(tmp_path, ("getdents64",), rsync, "-a", "--delete", f"{top}/", f"{out}/", strace=strace)
    assert "(INJECTED)" in log.read_text()
    assert os.listdir(out) == ["stays"]


def test_help_and_manual(rsync):
    assert "DISKORDER=off" in run(rsync, "--help")
    page = built("share/man/man1/rsync.1").read_text()
    assert "DISKORDER" in page and "DISKORDER_MEMORY" in page


def test_asks_btrfs_nothing(rsync, tmp_path):
    """FIEMAP there looks for all that share the data, which takes longer with each snapshot."""
    if os.geteuid() or not shutil.which("mkfs.btrfs"):
        pytest.skip("root and mkfs.btrfs are needed")
    image = tmp_path / "btrfs"
    with open(image, "wb") as handle:
        handle.truncate(256 << 20)
    run("mkfs.btrfs", "-q", image)
    with loop_mounted(image, tmp_path / "mnt") as where:
        source = make_many(where / "many", 300)
        # rsync, as released too, takes times of a directory for equal that are of the same second.
        os.utime(source, (1_600_000_000, 1_600_000_000))
        log = trace(tmp_path, ("ioctl",), rsync, "-a", f"{forget(source)}/", f"{tmp_path}/copy/")
        assert "FIEMAP" not in log.read_text()
        assert contents(tmp_path / "copy") == contents(source)
