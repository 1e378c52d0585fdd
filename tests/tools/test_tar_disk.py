# SPDX-License-Identifier: GPL-2.0-only
"""The directories in archives of tar --sort=disk, whose files may come after others from elsewhere."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
from conftest import built, contents, forget, loop_mounted, run

OLD = 10**18


@pytest.fixture(scope="module")
def tar():
    return built("bin/tar")


@pytest.fixture
def work(ext4):
    """A directory on ext4 for one test."""
    where = ext4 / "disk"
    where.mkdir()
    try:
        yield where
    finally:
        run("rm", "-rf", where)


def fill(folder, count=12, name="f{}"):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / name.format(number)).write_text(f"{folder.name} {number}\n" * 500)


def settle(top):
    """Old time stamps everywhere, data on the disk and out of memory."""
    for folder, dirs, files in os.walk(top, topdown=False):
        for name in [*files, *dirs]:
            os.utime(os.path.join(folder, name), ns=(OLD, OLD))
    os.utime(top, ns=(OLD, OLD))
    return forget(top)


def make_small(top):
    """Files in three directories; one of them and one more are read-only."""
    for name in ("a", "b", "closed"):
        fill(top / name)
    fill(top / "closed" / "below")
    (top / "locked").mkdir()
    for name in ("closed", "locked"):
        os.chmod(top / name, 0o555)
    for name in "ab":
        os.chmod(top / name, 0o2750)
    return settle(top)


def names(archive):
    """Members as they are stored; tarfile would take slashes off."""
    return run("tar", "-Ptf", archive, "--quoting-style=literal").splitlines()


def once(archive):
    """The members; directories stored twice by the name of their first header."""
    return {n.removesuffix(".") if n.endswith("/.") else n for n in names(archive)}


def again(archive):
    """The directories that have a second header, which must be those that have a first one before."""
    listed = names(archive)
    twice = [n for n in listed if n.endswith("/.")]
    for name in twice:
        assert listed.index(name[:-1]) < listed.index(name)
    first = [n for n in listed if not n.endswith("/.")]
    assert len(set(first)) == len(first) and len(set(twice)) == len(twice)
    return {n[:-2] for n in twice}


def without_times(tree):
    """As contents(), but for the time stamps of directories."""
    return {name: what[:3] if what[0].startswith("0o4") else what for name, what in contents(tree)[0].items()}


@contextlib.contextmanager
def extracted(where, argv, codes=(0,), **kwargs):
    """What a command makes of an archive in a new directory."""
    out = where / "out"
    out.mkdir()
    os.chmod(out, 0o755)
    os.utime(out, ns=(OLD + 7, OLD + 7))
    try:
        res = run(*argv, ok=False, cwd=out, **kwargs)
        assert res.returncode in codes, res.stderr[-2000:]
        yield out
    finally:
        run("rm", "-rf", out)


@pytest.mark.parametrize("more", [(), ("--delay-directory-restore",)])
@pytest.mark.parametrize("option", ["-U", "--recursive-unlink", "--no-overwrite-dir", "--keep-newer-files", "-k",
                                    "--skip-old-files", "--overwrite"])  # fmt: skip
@pytest.mark.parametrize("extractor", ["ours", "the system's"])
def test_options_of_extraction(tar, work, tmp_path, extractor, option, more):
    """As the man page has it: no option loses a file or gets a mode wrong."""
    small, archive = make_small(work / "s"), tmp_path / "a.tar"
    run(tar, "--format=posix", "--sort=disk", "-cf", archive, "-C", work, "s")
    assert again(archive) == {"s/a", "s/b"}
    unlinks = option in ("-U", "--recursive-unlink")
    argv = [tar if extractor == "ours" else "/usr/bin/tar", option, *more, "-xpf", archive]
    codes = [0]
    if extractor != "ours" and unlinks:
        codes = [2]
    elif extractor != "ours" and option == "--keep-newer-files":
        codes = [0, 2]  # 1.34, 1.35
    with extracted(work, argv, codes) as out:
        assert without_times(out / "s") == without_times(small)
        if more or option in ("--no-overwrite-dir", "--overwrite") or (unlinks and extractor == "ours"):
            assert contents(out / "s") == contents(small)


@pytest.mark.parametrize("option", ["-U", "--recursive-unlink"])
def test_unlinks_what_was_there_before(tar, work, tmp_path, option):
    small, archive = make_small(work / "s"), tmp_path / "a.tar"
    run(tar, "--format=posix", "--sort=disk", "-cf", archive, "-C", work, "s")
    with extracted(work, [tar, "-xpf", archive]) as out:
        if option == "--recursive-unlink":
            (out / "s" / "a" / "other").write_text("not in the archive\n")
        else:
            shutil.rmtree(out / "s" / "a")
            (out / "elsewhere").mkdir()
            (out / "s" / "a").symlink_to(out / "elsewhere")
            run("rm", "-r", out / "s" / "b", out / "s" / "closed", out / "s" / "locked")
            os.rename(out / "s" / "a", out / "link")
            os.rmdir(out / "s")
            (out / "s").mkdir()
            os.rename(out / "link", out / "s" / "a")
            before = os.stat(out / "elsewhere")
        res = run(tar, option, "-xpf", archive, ok=False, cwd=out)
        if option == "--recursive-unlink":
            assert res.returncode == 0, res.stderr
            assert contents(out / "s") == contents(small)
        else:
            # The top has a file: that it cannot be removed is what -U says of any archive.
            assert res.returncode == 2 and res.stderr.count("Cannot unlink") == 1, res.stderr
            assert not (out / "s" / "a").is_symlink()
            assert os.stat(out / "elsewhere") == before
            assert without_times(out / "s" / "a") == without_times(small / "a")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("extractor", ["ours", "the system's"])
def test_strip_components(tar, work, tmp_path, extractor, count):
    """Ours leaves the directory that is extracted to as it was; for others the man page has a warning."""
    make_small(work / "s")
    archive = tmp_path / "a.tar"
    run(tar, "--format=posix", "--sort=disk", "-cf", archive, "-C", work, "s")
    argv = [tar if extractor == "ours" else "/usr/bin/tar", f"--strip-components={count}", "-xpf", archive]
    with extracted(work, argv) as out:
        if count == 1:
            assert without_times(out / "a") == without_times(work / "s" / "a")
        elif extractor == "ours":
            assert os.stat(out).st_mode & 0o7777 == 0o755 and os.stat(out).st_mtime_ns > OLD + 7
        else:
            assert os.stat(out).st_mode & 0o7777 == 0o2750
    # A name that ends in a dot because it was given so is none of ours.
    run(tar, "--sort=none", "-cf", archive, "-C", work, "s/a/.")
    with extracted(work, [*argv[:1], "--strip-components=2", "-xpf", archive]) as out:
        assert os.stat(out).st_mode & 0o7777 == 0o2750


def others():
    script = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall()"
    yield pytest.param([sys.executable, "-W", "ignore", "-c", script], id="tarfile")
    for name, argv in (("bsdtar", ["bsdtar", "-xpf"]), ("busybox", ["busybox", "tar", "-xpf"])):
        skip = pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed")
        yield pytest.param(argv, id=name, marks=skip)


@pytest.mark.parametrize("argv", list(others()))
def test_other_programs_extract_it(tar, work, tmp_path, argv):
    small, archive = make_small(work / "s"), tmp_path / "a.tar"
    run(tar, "--sort=disk", "-cf", archive, "-C", work, "s")
    with extracted(work, [*argv, archive]) as out:
        if argv[0] == "busybox":
            # It never gives a directory its time stamp back after it has made something in it.
            assert without_times(out / "s") == without_times(small)
        else:
            assert contents(out / "s") == contents(small)


@pytest.mark.parametrize("order", ["auto", "disk"])
def test_what_comes_after_files_from_elsewhere(tar, work, tmp_path, order):
    """Files are stored in the middle of D, which has none that were put off, and a directory of D comes after that."""
    fill(work / "A")
    fill(work / "D" / "s1", 5000, "{:04}" + "x" * 240)
    for number in range(2, 9):
        (work / "D" / f"s{number}").mkdir()
        (work / "D" / f"empty{number}").touch()
    for name in "AD":
        settle(work / name)
    archive = tmp_path / "a.tar"
    run(tar, "--format=posix", f"--sort={order}", "-cf", archive, "-C", work, "A", "D", env={"DISKORDER_MEMORY": "1"})
    listed = [n.rstrip("/") for n in names(archive)]
    if order == "disk":
        # Else this does not test anything.
        last = max(listed.index(f"D/{kind}{number}") for kind in ("s", "empty") for number in range(2, 9))
        assert any(n.startswith("A/f") for n in listed[:last])
        assert again(archive) == {"A", "D", "D/s1"}
    for extractor in (tar, "/usr/bin/tar"):
        with extracted(work, [extractor, "-xpf", archive]) as out:
            for name in "AD":
                assert contents(out / name) == contents(work / name)


def test_the_one_that_alone_was_named(tar, work, tmp_path):
    """Nothing comes from outside of it: it is stored once."""
    small = make_small(work / "s")
    fill(small)
    settle(small)
    archive = tmp_path / "a.tar"
    for given, want in ((["s"], {"s/a", "s/b"}), (["-C", "s", "."], {"./a", "./b"})):
        forget(small)
        run(tar, "--format=posix", "--sort=disk", "-cf", archive, "-C", work, *given)
        assert again(archive) == want
        with extracted(work, ["/usr/bin/tar", "-xpf", archive]) as out:
            assert contents(out / "s" if given[0] == "s" else out) == contents(small)


@pytest.mark.parametrize("transform", ["s/^s$/backup/", r"s,^\./,,", "s,/$,,", "s,.*/,,", "s,^s$,,", "s,$,x,"])
def test_transform(tar, work, tmp_path, transform):
    """Both headers of a directory have the same name, and none that the first does not have."""
    fill(work / "s")
    fill(work / "t")
    settle(work / "s")
    settle(work / "t")
    archive = tmp_path / "a.tar"
    every = []
    for order in ("none", "disk"):
        forget(work)
        run(tar, f"--sort={order}", f"--transform={transform}", "-cf", archive, "-C", work, "t", "s", "-C", "s", ".")
        every.append(once(archive))
        listed = names(archive)
        for name in listed:
            if name.endswith("/."):
                assert order == "disk" and name[:-1] in listed[: listed.index(name)]
    assert every[0] == every[1]
    assert order == "disk" and any(n.endswith("/.") for n in listed)


def as_nobody(argv, archive, out):
    os.chown(out, 65534, 65534)
    with open(archive, "rb") as handle:
        return subprocess.run([str(a) for a in argv], stdin=handle, cwd=out, user=65534, group=65534, extra_groups=[],
                              capture_output=True, text=True, check=False)  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: test_tar.py does it as a user")
@pytest.mark.parametrize("how", ["mode", "acls"])
def test_anybody_can_extract_read_only_directories(tar, work, tmp_path, how):
    """Made read-only by --mode, or with ACLs that say so."""
    for name in ("a", "b"):
        fill(work / "s" / name)
    options = ["--mode=a-w"]
    if how == "acls":
        if not shutil.which("setfacl"):
            pytest.skip("setfacl is not installed")
        options = ["--acls", "--format=posix"]
        for name in ("a", "b"):
            run("setfacl", "-m", "u:1234:rx,d:u:1234:rx", work / "s" / name)
            os.chmod(work / "s" / name, 0o555)
    settle(work / "s")
    archive = tmp_path / "a.tar"
    run(tar, *options, "--sort=disk", "-cf", archive, "-C", work, "s")
    out = work / "out"
    out.mkdir()
    res = as_nobody(["/usr/bin/tar", *options[1:], *options[:1] * (how == "acls"), "-xpf", "-"], archive, out)
    assert res.returncode == 0, res.stderr
    for name in ("a", "b"):
        assert sorted(os.listdir(out / "s" / name)) == sorted(os.listdir(work / "s" / name))
        assert os.stat(out / "s" / name).st_mode & 0o777 == 0o555
        assert os.stat(out / "s" / name).st_mtime_ns == OLD


def test_acls_of_a_directory_stored_twice(tar, work, tmp_path):
    if not shutil.which("setfacl"):
        pytest.skip("setfacl is not installed")
    for name in ("a", "b"):
        fill(work / "s" / name)
        run("setfacl", "-m", "u:1234:rwx,d:u:1234:rx", work / "s" / name)
        os.setxattr(work / "s" / name, "user.colour", b"blue")
    settle(work / "s")
    archive = tmp_path / "a.tar"
    options = ["--acls", "--xattrs", "--format=posix"]
    run(tar, *options, "--sort=disk", "-cf", archive, "-C", work, "s")
    assert again(archive) == {"s/a", "s/b"}
    for extractor in (tar, "/usr/bin/tar"):
        with extracted(work, [extractor, *options, "-xpf", archive]) as out:
            for name in ("a", "b"):
                for key in ("system.posix_acl_access", "system.posix_acl_default", "user.colour"):
                    assert os.getxattr(out / "s" / name, key) == os.getxattr(work / "s" / name, key)


def test_longer_than_a_path_may_be(tar, work, tmp_path):
    """A directory that cannot be opened by its path has its files stored at once."""
    here = os.getcwd()
    (work / "s").mkdir()
    os.chdir(work / "s")
    try:
        for depth in range(24):
            pathlib.Path("file").write_text(f"{depth}\n" * 500)
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    every = {}
    for order in ("none", "disk"):
        forget_deep(work / "s")
        archive = tmp_path / f"{order}.tar"
        res = run(tar, "--format=posix", f"--sort={order}", "-cf", archive, "-C", work, "s", ok=False)
        assert res.returncode == 0, res.stderr[-500:]
        every[order] = once(archive)
    assert len(every["none"]) == 1 + 24 * 2
    assert every["none"] == every["disk"]


def forget_deep(top):
    os.sync()
    for _, _, files, fd in os.fwalk(top):
        for name in files:
            file = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def test_directories_that_go_away_meanwhile(tar, work, tmp_path):
    """What was said of them is said again from memory; what is missing is told."""
    top, given = work / "s", ["a", "b", "closed"]
    for name in given:
        fill(top / name)
    os.chmod(top / "closed", 0o555)
    for number in range(100):
        given.append(f"empty{number}")
        (top / given[-1]).mkdir()
    settle(top)
    archive = tmp_path / "a.tar"
    # Once their headers are stored, and of those that are empty only some; files come after all of them.
    action = f"exec=cd {top} && test -d a && mv a gone && mv closed gone2"
    res = run(tar, "--format=posix", "--sort=disk", "--checkpoint=200", f"--checkpoint-action={action}", "-b1", "-cf",
              archive, "-C", top, *given, ok=False)  # fmt: skip
    assert res.returncode and (top / "gone").is_dir() and (top / "gone2").is_dir()
    with tarfile.open(archive) as handle:
        members = [(m.name, m.mode, m.mtime) for m in handle]
    missing = [f"a/f{n}" for n in range(12)]
    assert not {m[0] for m in members} & set(missing)
    for name in missing:
        assert f"{name}: File removed" in res.stderr
    when = OLD / 10**9
    assert [m for m in members if m[0] in ("a", "a/.")] == [("a", 0o755, when), ("a/.", 0o755, when)]
    assert [m for m in members if m[0] in ("closed", "closed/.")] == [("closed", 0o555, when)]


@pytest.mark.parametrize("memory", ["all", "nothing"])
def test_compares_equal(tar, work, tmp_path, memory):
    """--verify and --compare find no difference in read-only directories."""
    small, archive = make_small(work / "s"), tmp_path / "a.tar"
    if memory == "all":
        contents(small)
    run(tar, "--sort=disk", "-cWf", archive, "-C", work, "s")
    for program in (tar, "/usr/bin/tar"):
        run(program, "-df", archive, "-C", work)


def test_read_only_directories_take_no_memory(tar, work, tmp_path):
    """20,000 of them, which were 10 MB once."""
    (work / "s").mkdir()
    for number in range(20000):
        (work / "s" / f"{number}").mkdir(mode=0o555)
    peak = {}
    for order in ("auto", "disk"):
        result = tmp_path / order
        # Near the end: a header is a block, and a record has 20.
        action = f"--checkpoint-action=exec=cat /proc/$PPID/status >{result}"
        run(tar, f"--sort={order}", "--checkpoint=990", action, "-cf", tmp_path / "a.tar", "-C", work, "s")
        peak[order] = int(result.read_text().split("VmHWM:")[1].split()[0])
    assert peak["disk"] - peak["auto"] < 2048


@pytest.mark.parametrize("form", ["v7", "ustar"])
def test_names_as_long_as_the_format_has_them(tar, work, tmp_path, form):
    """The name of the second header is longer than that of the first."""
    for length in range(88, 100):
        fill(work / ("d" * length), 3)
        fill(work / ("e" * length) / ("f" * 60), 3)
    for folder in work.iterdir():
        settle(folder)
    archive, given = tmp_path / "a.tar", sorted(p.name for p in work.iterdir())
    every = {}
    for order in ("none", "disk"):
        forget(work)
        res = run(tar, f"--format={form}", f"--sort={order}", "-cf", archive, "-C", work, *given, ok=False)
        every[order] = (once(archive), res.returncode)
    assert every["none"] == every["disk"]
    assert any(n.endswith("/.") for n in names(archive))


@pytest.mark.parametrize("limit", [8, 20])
def test_few_descriptors(tar, work, tmp_path, limit):
    """More directories with files put off than may be open: each file is stored."""
    for number in range(40):
        fill(work / "s" / f"d{number}", 4)
    settle(work / "s")
    archive = tmp_path / "a.tar"
    run("prlimit", f"--nofile={limit}:{limit}", tar, "--sort=disk", "-cf", archive, "-C", work, "s")
    assert len([n for n in names(archive) if "/f" in n]) == 160
    assert len(again(archive)) == 40


def changed_meanwhile(tar, work, tmp_path, what):
    """What tar says when a directory changes while the files of a later one are stored."""
    for name in ("a", "b"):
        fill(work / "s" / name, 40)
    settle(work / "s")
    # Once the headers of both are stored, and a file or two.
    action = f"exec=cd {work}/s && {what}"
    res = run(tar, "--format=posix", "--sort=disk", "--checkpoint=20", f"--checkpoint-action={action}", "-b1", "-cf",
              tmp_path / "a.tar", "-C", work, "s", ok=False)  # fmt: skip
    return res.returncode, res.stderr.splitlines()


@pytest.mark.parametrize("what", ["touch a/new", "chmod 700 a"])
def test_directory_changes_while_files_wait(tar, work, tmp_path, what):
    code, output = changed_meanwhile(tar, work, tmp_path, what)
    assert code == 1
    assert [line.split(": ", 1)[1] for line in output] == ["s/a/: file changed as we read it"]


def test_directory_does_not_change(tar, work, tmp_path):
    assert changed_meanwhile(tar, work, tmp_path, "cat a/f1 >/dev/null") == (0, [])


def test_file_replaced_after_it_was_read_ahead(tar, work, tmp_path):
    """tar stores the file that has the name then, not the one that it has open since it was read ahead."""
    new = work / "new"
    new.write_text("later\n" * 700)
    where = work / "s" / "b"
    command = f"for f in {where}/f*; do cp {new} $f.new; mv $f.new $f; done"
    code, output = changed_meanwhile(tar, work, tmp_path, command)
    assert code == 1 and output
    with tarfile.open(tmp_path / "a.tar") as archive:
        stored = [archive.extractfile(m).read() for m in archive if m.isreg() and m.name.startswith("s/b/")]
    assert len(stored) == 40
    assert sum(data == new.read_bytes() for data in stored) >= 35


def openings(tar, work, tmp_path, folder, env=None):
    """How often tar --sort=disk opens a file of the folder for reading, on average; and the members."""
    trace = tmp_path / "trace"
    run("strace", "-f", "-e", "trace=openat", "-o", trace, tar, "--sort=disk", "-cf", tmp_path / "a.tar", "-C",
        folder.parent, folder.name, env=env or {})  # fmt: skip
    log = trace.read_text().splitlines()
    opened = sum('.f"' in line and " = -1" not in line and "O_PATH" not in line for line in log)
    return opened / len(list(folder.iterdir())), names(tmp_path / "a.tar")


def test_each_file_is_opened_twice(tar, work, tmp_path):
    """Once to learn where it lies, once to read it ahead, store it and drop it: fanotify and audit see each open."""
    fill(work / "s", 600, "{}.f")
    settle(work / "s")
    assert openings(tar, work, tmp_path, work / "s")[0] == 2


def test_turned_off(tar, work, tmp_path):
    """DISKORDER=off: no file is put off, none is opened more than once."""
    fill(work / "s", 300, "{}.f")
    settle(work / "s")
    on, members = openings(tar, work, tmp_path, work / "s")
    forget(work / "s")
    off, same = openings(tar, work, tmp_path, work / "s", {"DISKORDER": "off"})
    assert off == 1 and on == 2
    assert sorted(members) == sorted(same)


def test_without_places_on_a_disk(tar, work, tmp_path):
    """Where no file has a place, that is found out with 64 files, which are those opened twice."""
    image = work / "btrfs"
    with open(image, "wb") as handle:
        handle.truncate(256 << 20)
    run("mkfs.btrfs", "-q", image)
    with loop_mounted(image, work / "mnt") as where:
        folder = where / "s"
        folder.mkdir()
        for number in range(640):
            # Kept beside the inode, as btrfs says by FIEMAP.
            (folder / f"{number}.f").write_text(f"{number}\n" * 100)
        forget(folder)
        each, members = openings(tar, work, tmp_path, folder)
    assert len(members) == 641
    assert 1 < each <= 1 + 64 / 640
