# SPDX-License-Identifier: GPL-2.0-only
"""GNU tar with --sort=auto (its new default) and --sort=disk."""

import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import pytest
from conftest import AHEAD_CALLS, asked_ahead, built, contents, falls, first_extent, forget, in_memory, resident, run

ORDERS = ("auto", "disk", "inode", "name", "none")


@pytest.fixture(scope="module")
def tar():
    return built("bin/tar")


OPTIONS = ("--format=posix", "--xattrs", "--xattrs-include=user.*")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("extractor", ["ours", "the system's"])
def test_extracts_identically(tar, tree, ext4, tmp_path, order, extractor):
    archive, out = tmp_path / "a.tar", ext4 / "out"
    forget(tree)
    run(tar, *OPTIONS, f"--sort={order}", "-Scf", archive, "-C", tree.parent, tree.name)
    out.mkdir()
    try:
        run(tar if extractor == "ours" else "/usr/bin/tar", *OPTIONS, "-xpf", archive, "-C", out)
        assert contents(out / tree.name) == contents(tree)
        assert os.stat(out / tree.name / "holes").st_blocks * 512 < 1 << 20
    finally:
        shutil.rmtree(out)


def test_extracts_identically_as_a_user(tar, tree, ext4, tmp_path):
    """Not root: a directory of mode 555 takes no files once it has that mode."""
    if os.geteuid():
        pytest.skip("not root: the test above has shown it")
    out = ext4 / "user"
    out.mkdir()
    os.chown(out, 65534, 65534)
    archive = ext4 / "user.tar"
    forget(tree)
    run(tar, "--sort=disk", "-cf", archive, "-C", tree.parent, tree.name)
    try:
        with open(archive, "rb") as handle:
            res = subprocess.run(["/usr/bin/tar", "-xpf", "-"], stdin=handle, cwd=out, user=65534, group=65534,
                                 capture_output=True, text=True, check=False)  # fmt: skip
        assert res.returncode == 0, res.stderr
        got, want = contents(out / tree.name), contents(tree)
        assert got[1] == want[1] and set(got[0]) == set(want[0])
        assert got[0]["closed"][0] == want[0]["closed"][0]
    finally:
        shutil.rmtree(out)


def regular(archive):
    with tarfile.open(archive) as handle:
        return [m.name for m in handle if m.isreg() and not m.islnk()]


def test_inode_order_by_default(tar, many, tmp_path):
    names = {}
    for order in ("default", "none"):
        archive = tmp_path / f"{order}.tar"
        run(tar, *[f"--sort={order}"] * (order != "default"), "-cf", archive, "-C", many.parent, many.name)
        names[order] = regular(archive)
    assert sorted(names["default"]) == sorted(names["none"])
    assert falls([os.stat(many.parent / n).st_ino for n in names["default"]]) <= 2
    off = tmp_path / "off.tar"
    run(tar, "-cf", off, "-C", many.parent, many.name, env={"DISKORDER": "off"})
    assert regular(off) == names["none"]


def test_disk_order(tar, many, ext4, tmp_path):
    """Across directories: the data of all files, in the order it lies."""
    other = ext4 / "many2"
    other.mkdir()
    for number, name in enumerate(sorted(os.listdir(many))[:500]):
        (other / f"{number}").write_bytes((many / name).read_bytes())
    os.sync()
    archive = tmp_path / "a.tar"
    forget(many)
    forget(other)
    run(tar, "--sort=disk", "-cf", archive, "-C", ext4, "many", "many2")
    names = regular(archive)
    assert len(names) == len(set(names)) == 5500
    places = [first_extent(ext4 / n) for n in names]
    assert falls([p for p in places if p]) == 0
    run("/usr/bin/tar", "-df", archive, "-C", ext4)
    shutil.rmtree(other)


@pytest.mark.parametrize("warm", ["all", "half"])
def test_disk_order_of_what_is_not_in_memory(tar, many, tmp_path, warm):
    """Files in memory are asked for nothing; the others are read in disk order all the same."""
    names = sorted(os.listdir(many))
    # Every second one as they come: their numbers may have holes, and 16 files in memory in a row are a sign.
    cold = set() if warm == "all" else set(sorted(names, key=lambda n: os.stat(many / n).st_ino)[::2])
    forget(many)
    assert not resident(many / n for n in cold)
    log = tmp_path / "trace"
    argv = ["strace", "-f", "-y", "-qq", "-o", log, "-e", f"trace=ioctl,{','.join(AHEAD_CALLS)}", tar,
            "--sort=disk"]  # fmt: skip
    with in_memory(many / n for n in names if n not in cold):
        run(*argv, "-cf", tmp_path / "a.tar", "-C", many.parent, many.name)
    text = log.read_text()
    asked = set(re.findall(r"ioctl.*?/([^/>]*)>.*FIEMAP", text))
    ahead = {os.path.basename(found[0]) for found in map(asked_ahead, text.splitlines()) if found}
    members = [os.path.basename(n) for n in regular(tmp_path / "a.tar")]
    assert sorted(members) == names
    assert (len(asked - cold), len(cold - asked)) == (0, 0)
    assert asked == ahead
    assert falls([first_extent(many / n) for n in members if n in cold]) == 0


def test_memory_is_left_as_it_was(tar, many, tmp_path):
    """Data that was read for the archive alone does not stay; what was in memory does."""
    names = sorted(os.listdir(many))
    warm = [many / n for n in names[::3]]
    cold = [many / n for n in names if many / n not in warm]
    forget(many)
    for path in warm:
        path.read_bytes()
    before = set(resident(many / n for n in names))
    if len(before) < len(warm) // 2:
        pytest.skip(f"the kernel keeps only {len(before)} of {len(warm)} files in memory that were just read")
    run(tar, "--sort=disk", "-cf", tmp_path / "a.tar", "-C", many.parent, many.name)
    assert len(regular(tmp_path / "a.tar")) == len(names)
    after = set(resident(many / n for n in names))
    # The kernel takes out what it likes, and a page that it holds at that moment stays.
    assert len(before - after) <= len(before) // 2
    assert len(after - before) <= len(cold) // 100
    # By default tar reads as any program does.
    run(tar, "-cf", tmp_path / "a.tar", "-C", many.parent, many.name)
    assert len(resident(cold)) >= len(cold) // 2


@pytest.mark.parametrize(("soft", "hard", "most"), [(1024, 20000, 5000), (600, 600, 300)])
def test_files_are_held_open(tar, many, tmp_path, soft, hard, most):
    """No name is looked up on the disk again: all are opened by inode, as many as may be, until they are stored."""
    # The order of inodes, but for the first few names: those that came ascending were passed on before it was sorted.
    run(tar, "-cf", tmp_path / "auto.tar", "-C", many, ".")
    turn = {os.path.basename(n): at for at, n in enumerate(regular(tmp_path / "auto.tar"))}
    log = tmp_path / "trace"
    argv = ["strace", "-f", "-y", "-qq", "-o", log, "-e", "trace=openat,close,prlimit64,setrlimit"]
    forget(many)
    run("prlimit", f"--nofile={soft}:{hard}", *argv, tar, "--sort=disk", "-cf", tmp_path / "a.tar", "-C", many, ".")
    opened, held, at_once, limits = [], set(), 0, []
    for line in log.read_text().splitlines():
        if found := re.search(r'openat\(.*"([^"]+)", \S*O_PATH.* = (\d+)<', line):
            opened.append(found[1])
            held.add(found[2])
        elif found := re.search(r"close\((\d+)<", line):
            held.discard(found[1])
        elif found := re.search(r"RLIMIT_NOFILE, \{rlim_cur=(\d+)", line):
            limits.append(int(found[1]))
        at_once = max(at_once, len(held))
    members = [os.path.basename(n) for n in regular(tmp_path / "a.tar")]
    assert sorted(opened) == sorted(os.listdir(many)) == sorted(members)
    # In one row, or in two of at most 4,096, the least there is.
    assert falls([turn[n] for n in opened]) <= (most < 5000)
    # One more is open while it is looked at.
    assert at_once in (most, most + 1) and not held
    # Then for the files that are read ahead and not stored yet.
    assert limits == ([soft + most, soft + most + 256, soft] if soft < hard else [])


@pytest.mark.parametrize("how", ["replace", "system"])
def test_time_of_access_of_a_directory_stays(tar, many, tmp_path, how):
    """Names are read once more when their turn comes, after tar has set the time back."""
    if os.statvfs(many).f_flag & os.ST_NOATIME:
        pytest.skip("the file system keeps no time of access")
    old = 10**18
    forget(many)
    os.utime(many, ns=(old, os.stat(many).st_mtime_ns))
    run(tar, "--sort=disk", f"--atime-preserve={how}", "-cf", tmp_path / "a.tar", "-C", many.parent, many.name)
    assert os.stat(many).st_atime_ns == old
    os.listdir(many)
    assert os.stat(many).st_atime_ns != old


def test_disk_order_in_little_memory(tar, many, ext4, tmp_path):
    """More than 1 MiB remembers: several rows, nothing lost, time stamps of directories as ever."""
    where = ext4 / "long"
    where.mkdir()
    for number, name in enumerate(sorted(os.listdir(many))):
        data = (many / name).read_bytes()
        (where / f"{number:04}{'x' * 240}").write_bytes(data)
    os.utime(where, ns=(10**18, 10**18))
    os.sync()
    archive, out = tmp_path / "a.tar", ext4 / "out"
    out.mkdir()
    try:
        forget(where)
        run(tar, *OPTIONS, "--sort=disk", "-cf", archive, "-C", ext4, "long", env={"DISKORDER_MEMORY": "1"})
        names = regular(archive)
        assert len(names) == len(set(names)) == 5000
        rows = falls([p for p in (first_extent(ext4 / n) for n in names) if p])
        assert 1 <= rows <= 2
        with tarfile.open(archive) as handle:
            # Alone, it is not stored twice: nothing comes from outside of it.
            assert [m.name for m in handle if m.isdir()] == ["long"]
        run("/usr/bin/tar", "-xpf", archive, "-C", out)
        assert contents(out / "long") == contents(where)
    finally:
        shutil.rmtree(where)
        shutil.rmtree(out)


@pytest.mark.parametrize("order", ["auto", "disk"])
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_incremental(tar, tree, ext4, tmp_path, order, form):
    work, out = ext4 / "work", ext4 / "restored"
    run("cp", "-a", tree, work)
    out.mkdir()
    state = tmp_path / "state"
    make = [tar, f"--format={form}", f"--sort={order}", "-C", ext4, f"--listed-incremental={state}"]
    try:
        forget(work)
        run(*make, "-cf", tmp_path / "0.tar", "work")
        (work / "d" / "f3").unlink()
        (work / "d" / "new").write_text("new\n")
        (work / "d" / "deep").rename(work / "moved")
        shutil.rmtree(work / "empty")
        forget(work)
        run(*make, "-cf", tmp_path / "1.tar", "work")
        for level in "01":
            run("/usr/bin/tar", "--listed-incremental=/dev/null", "-xpf", tmp_path / f"{level}.tar", "-C", out)
        got, want = contents(out / "work"), contents(work)
        if form == "gnu":  # whole seconds; and no xattrs are asked for
            for side in (got, want):
                for what in side[0].values():
                    what[3] //= 10**9
        for side in (got, want):
            for what in side[0].values():
                what[4:] = [w for w in what[4:] if not isinstance(w, dict)]
        assert got == want
        assert "work/d/f9" not in regular(tmp_path / "1.tar")
    finally:
        shutil.rmtree(work)
        shutil.rmtree(out)


@pytest.mark.parametrize(
    "extra",
    [
        ("--exclude=f1*", "tree"),
        ("--exclude-tag=in", "tree"),
        ("--no-recursion", "tree"),
        ("--one-file-system", "tree"),
        ("-C", "tree", "d", "-C", "d", "deep"),
        ("-T", "LIST"),
        ("--newer-mtime=2100-01-01", "tree"),
        ("--transform=s/tree/other/", "tree"),
    ],
)
def test_same_members(tar, tree, tmp_path, extra):
    (tmp_path / "list").write_text("tree/d\ntree/holes\ntree/closed/in\n")
    extra = [str(tmp_path / "list") if e == "LIST" else e for e in extra]
    sets = []
    for order in ("none", "auto", "disk"):
        archive = tmp_path / f"{order}.tar"
        forget(tree)
        run(tar, f"--sort={order}", "-cf", archive, "-C", tree.parent, *extra)
        with tarfile.open(archive) as handle:
            # Which name of a hard link carries the data depends on the order.
            # Directories may be there twice, as test_tar_disk.py has it.
            sets.append({(m.name.removesuffix("/."), b"0" if m.islnk() else m.type) for m in handle})
    assert sets[0] == sets[1] == sets[2] and sets[0]


def test_remove_files_and_append(tar, tree, ext4, tmp_path):
    work = ext4 / "going"
    run("cp", "-a", tree, work)
    want = contents(work)
    forget(work)
    run(tar, *OPTIONS, "--sort=disk", "--remove-files", "-cf", tmp_path / "a.tar", "-C", ext4, "going")
    assert not work.exists()
    run(tar, *OPTIONS, "-xpf", tmp_path / "a.tar", "-C", ext4)
    assert contents(work) == want
    run(tar, *OPTIONS, "--sort=disk", "-rf", tmp_path / "a.tar", "-C", ext4, "many" if (ext4 / "many").exists() else
        "going/d")  # fmt: skip
    run(tar, "-tf", tmp_path / "a.tar")
    shutil.rmtree(work)


def test_multi_volume(tar, tree, ext4, tmp_path):
    volumes = [str(tmp_path / f"v{n}.tar") for n in range(40)]
    create = [f"--file={v}" for v in volumes]
    forget(tree)
    run(tar, "--sort=disk", "-ScM", "--tape-length=200", *create, "-C", tree.parent, tree.name)
    used = [v for v in volumes if os.path.exists(v)]
    assert len(used) > 3
    out = ext4 / "volumes"
    out.mkdir()
    run("/usr/bin/tar", "-xpM", *[f"--file={v}" for v in used], "-C", out)
    got, want = contents(out / tree.name), contents(tree)
    assert got[1] == want[1] and {k: v[5:6] for k, v in got[0].items()} == {k: v[5:6] for k, v in want[0].items()}
    shutil.rmtree(out)


def test_help_and_manual(tar):
    assert "disk (also files" in run(tar, "--help")
    page = pathlib.Path(built("share/man/man1/tar.1")).read_text()
    assert "sort=auto" in page and "sort=disk" in page
    res = run(tar, "--sort=nonsense", "-cf", "/dev/null", "/dev/null", ok=False)
    assert res.returncode and "disk" in res.stderr
