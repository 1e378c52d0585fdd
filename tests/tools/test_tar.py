# SPDX-License-Identifier: GPL-2.0-only
"""GNU tar with --sort=auto (its new default) and --sort=disk."""

import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import pytest
from conftest import HERE, REPO, built, contents, first_extent, on_ext4, run

ORDERS = ("auto", "disk", "inode", "name", "none")


@pytest.fixture(scope="module")
def tar():
    return built("bin/tar")


@pytest.fixture(scope="module")
def tree(ext4):
    """What makes trouble in archives, with old time stamps."""
    top = ext4 / "tree"
    (top / "d" / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "closed").mkdir()
    for number in range(400):
        (top / "d" / f"f{number}").write_text(f"data {number}\n" * (number + 1))
        (top / "d" / "deep" / f"g{number}").write_text(f"deep {number}\n")
    (top / "d" / "deep" / "er" / ("n" * 200)).write_text("long name\n")
    (top / "none").write_text("")
    with open(top / "holes", "wb") as handle:
        handle.seek(5 << 20)
        handle.write(b"middle")
        handle.truncate(9 << 20)
    (top / "closed" / "in").write_text("in a directory nobody may write to\n")
    os.link(top / "closed" / "in", top / "d" / "hard")
    os.link(top / "closed" / "in", top / "hard")
    os.symlink("d/f1", top / "sym")
    os.mkfifo(top / "fifo")
    if on_ext4(top):
        os.setxattr(top / "d" / "f7", "user.colour", b"blue")
    os.chmod(top / "closed", 0o555)
    for folder, dirs, files in os.walk(top, topdown=False):
        for name in [*files, *dirs]:
            os.utime(os.path.join(folder, name), ns=(10**18, 10**18 + len(name)), follow_symlinks=False)
    os.utime(top, ns=(10**18, 10**18))
    os.sync()
    return top


OPTIONS = ("--format=posix", "--xattrs", "--xattrs-include=user.*")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("extractor", ["ours", "the system's"])
def test_extracts_identically(tar, tree, ext4, tmp_path, order, extractor):
    archive, out = tmp_path / "a.tar", ext4 / "out"
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


def falls(numbers):
    return sum(b < a for a, b in zip(numbers, numbers[1:], strict=False))


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
    run(tar, "--sort=disk", "-cf", archive, "-C", ext4, "many", "many2")
    names = regular(archive)
    assert len(names) == len(set(names)) == 5500
    places = [first_extent(ext4 / n) for n in names]
    assert falls([p for p in places if p]) == 0
    run("/usr/bin/tar", "-df", archive, "-C", ext4)
    shutil.rmtree(other)


@pytest.mark.parametrize("order", ["auto", "disk"])
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_incremental(tar, tree, ext4, tmp_path, order, form):
    work, out = ext4 / "work", ext4 / "restored"
    run("cp", "-a", tree, work)
    out.mkdir()
    state = tmp_path / "state"
    make = [tar, f"--format={form}", f"--sort={order}", "-C", ext4, f"--listed-incremental={state}"]
    try:
        run(*make, "-cf", tmp_path / "0.tar", "work")
        (work / "d" / "f3").unlink()
        (work / "d" / "new").write_text("new\n")
        (work / "d" / "deep").rename(work / "moved")
        shutil.rmtree(work / "empty")
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
        run(tar, f"--sort={order}", "-cf", archive, "-C", tree.parent, *extra)
        with tarfile.open(archive) as handle:
            # Which name of a hard link carries the data depends on the order.
            sets.append({(m.name, b"0" if m.islnk() else m.type) for m in handle})
    assert sets[0] == sets[1] == sets[2] and sets[0]


def test_remove_files_and_append(tar, tree, ext4, tmp_path):
    work = ext4 / "going"
    run("cp", "-a", tree, work)
    want = contents(work)
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


def failures(log):
    return set(re.findall(r"FAILED \((\S+\.at):\d+\)", log))


@pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="tar's own test suite takes minutes: ITREE_FULL=1")
def test_upstream_suite():
    """Nothing fails that does not fail unpatched; tar-upstream-failures.txt lists those."""
    known = {
        line.split("#")[0].strip()
        for line in (HERE / "tar" / "upstream-failures.txt").read_text().splitlines()
        if line.split("#")[0].strip()
    }
    run(HERE / "build", "--tree", "tar", timeout=1500)
    where = REPO / "build" / "coreutils-patches" / "tar" / "obj"
    res = run("make", "check", cwd=where, ok=False, timeout=1700)
    assert len(re.findall(r"^ *\d+: .* ok$", res.stdout, re.M)) > 150, res.stdout[-3000:]
    assert failures(res.stdout) <= known
