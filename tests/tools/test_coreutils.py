# SPDX-License-Identifier: GPL-2.0-only
"""ls, cp and mv in disk order."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import (
    AHEAD_CALLS,
    HERE,
    REPO,
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

pytestmark = pytest.mark.skipif(
    not os.environ.get("ITREE_FULL"), reason="coreutils takes two minutes to build: ITREE_FULL=1"
)
STATS = ("lstat", "stat", "newfstatat", "statx", "lgetxattr", "getxattr")


@pytest.fixture(scope="module", autouse=True)
def build():
    """Both, ours and unpatched."""
    run(HERE / "build", "coreutils", timeout=1500)
    run(HERE / "build", "--pristine", "coreutils", timeout=1500)


def stock(name):
    return REPO / "build" / "coreutils-patches" / "coreutils-pristine" / "root" / "bin" / name


def examined(tmp_path, argv, folder, calls=STATS, **kwargs):
    """The files of folder in the order in which argv names them in calls."""
    out = tmp_path / "trace"
    run("strace", "-f", "-qq", "-o", out, "-e", f"trace={','.join('?' + c for c in calls)}", *argv, **kwargs)
    return named_in_order(out, calls, folder)


@pytest.mark.parametrize("options", [("-l",), ("-i",), ("-t",), ("-lS", "--color=always"), ("-F",), ("-s",)])
def test_ls_examines_in_inode_order(many, tmp_path, options):
    ours = examined(tmp_path, [built("bin/ls"), *options, many], many)
    theirs = examined(tmp_path, [stock("ls"), *options, many], many)
    off = examined(tmp_path, [built("bin/ls"), *options, many], many, env={"DISKORDER": "off"})
    assert len(ours) == 5000 and off == theirs
    assert falls([os.stat(many / n).st_ino for n in ours]) <= 2
    assert falls([os.stat(many / n).st_ino for n in theirs]) > 1000


def test_ls_reads_as_it_is_where_that_shows(many, tmp_path):
    """Unsorted output is the directory's order, and names alone need no order."""
    assert run(built("bin/ls"), "-U", many).split() == [e.name for e in os.scandir(many)]
    assert run(built("bin/ls"), "-lU", many) == run(stock("ls"), "-lU", many)
    assert not examined(tmp_path, [built("bin/ls"), many], many)


OUTPUTS = [
    ("-l",),
    ("-laR", "--full-time"),
    ("-liS",),
    ("-ltr",),
    ("-lX",),
    ("-lv",),
    ("-1c",),
    ("-lL",),
    ("-lZ",),
    ("-CF", "--color=always"),
    ("-s", "--width=80"),
    ("-m", "--classify"),
    ("-lR", "--hyperlink=always"),
    ("-laU",),
    ("-f",),
]


@pytest.mark.parametrize("options", OUTPUTS, ids=" ".join)
@pytest.mark.parametrize("env", [{}, {"DISKORDER_MEMORY": "1"}])
def test_ls_same_output(many, tree, options, env):
    for where in (many, tree):
        ours = run(built("bin/ls"), *options, where, ok=False, env=env)
        theirs = run(stock("ls"), *options, where, ok=False)
        # strerror() and all: but for the name of the program.
        assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
        assert ours.stderr.replace(str(built("bin/ls")), "ls") == theirs.stderr.replace(str(stock("ls")), "ls")


def test_ls_mount_point():
    """ls -i must not believe the directory's inode number of a mount point."""
    assert run(built("bin/ls"), "-i", "/") == run(stock("ls"), "-i", "/")


def copied(tmp_path, argv, folder, cold=True, **kwargs):
    """The files of folder in the order in which argv makes copies of them, and those it reads ahead."""
    out = tmp_path / "trace"
    if cold:
        forget(folder)
    known = set(os.listdir(folder))
    run(
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-qq",
        "-o",
        out,
        "-e",
        f"trace=openat,{','.join(AHEAD_CALLS)}",
        *argv,
        **kwargs,
    )
    made, ahead = [], []
    for line in pathlib.Path(out).read_text(errors="replace").splitlines():
        found = re.search(r'openat\([^"]*"([^"]*)", [A-Z_|]*O_CREAT', line)
        if found and os.path.basename(found[1]) in known:
            made.append(os.path.basename(found[1]))
        asked = asked_ahead(line)
        if asked and os.path.basename(asked[0]) in known:
            ahead.append(os.path.basename(asked[0]))
    return made, ahead


def places(folder, names):
    return [first_extent(folder / n) for n in names]


@pytest.fixture
def target(ext4):
    out = ext4 / "target"
    yield out
    shutil.rmtree(out, ignore_errors=True)


@pytest.fixture
def elsewhere():
    """A directory on another file system."""
    out = pathlib.Path("/dev/shm") / f"itree-{os.getpid()}"
    if os.path.ismount("/dev/shm"):
        yield out
        shutil.rmtree(out, ignore_errors=True)
    else:
        pytest.skip("needs a second file system at /dev/shm")


def test_cp_in_disk_order(many, tmp_path, target):
    made, ahead = copied(tmp_path, [built("bin/cp"), "-a", many, target], many)
    assert contents(target) == contents(many)
    assert len(made) == 5000 and made == ahead
    assert not falls(places(many, made))
    shutil.rmtree(target)
    off, ahead = copied(tmp_path, [built("bin/cp"), "-a", many, target], many, env={"DISKORDER": "off"})
    shutil.rmtree(target)
    theirs, _ = copied(tmp_path, [stock("cp"), "-a", many, target], many)
    assert off == theirs and not ahead


def test_cp_does_not_open_what_will_be_a_link(ext4, tmp_path, target):
    """As in a tree of snapshots: the names of the second directory are links to the files of the first."""
    top = ext4 / "snapshots"
    for name in ("1", "2"):
        (top / name).mkdir(parents=True)
    for number in range(200):
        (top / "1" / f"file{number}").write_bytes(b"x" * 5000)
        os.link(top / "1" / f"file{number}", top / "2" / f"link{number}")
    forget(top / "1")
    target.mkdir()
    made, ahead = copied(tmp_path, [built("bin/cp"), "-a", top / "1", top / "2", target], top / "1")
    assert sorted(made) == sorted(ahead) == sorted(os.listdir(top / "1"))
    assert not re.findall(r'openat\([^"]*"link', (tmp_path / "trace").read_text())
    assert len(contents(target)[1]) == 200
    assert all(contents(target / name) == contents(top / name) for name in ("1", "2"))
    shutil.rmtree(top)


def test_cp_in_memory_as_the_unpatched_one(many, tmp_path, target):
    """A few files are looked at; they, and then all others, come in the order they always had."""
    with in_memory(many.iterdir()):
        check_in_memory(many, tmp_path, target)


def check_in_memory(many, tmp_path, target):
    made, ahead = copied(tmp_path, [built("bin/cp"), "-a", many, target], many, cold=False)
    opened = (tmp_path / "trace").read_text().count("O_RDONLY|O_NOCTTY|O_NONBLOCK|O_NOFOLLOW|O_CLOEXEC")
    assert contents(target) == contents(many) and 16 <= opened < 16 * 8 and not ahead
    shutil.rmtree(target)
    theirs, _ = copied(tmp_path, [stock("cp"), "-a", many, target], many, cold=False)
    # Those looked at come at once, then those that were passed.
    place = {name: number for number, name in enumerate(theirs)}
    assert sorted(made) == sorted(theirs) and falls([place[n] for n in made]) <= 1


def test_cp_half_in_memory(many, tmp_path, target):
    """What is not in memory is copied in disk order, whatever is between it."""
    names = sorted(os.listdir(many))
    # Every second of those that cp looks at: where 16 in a row are in memory, it passes some unseen.
    cold = set(sorted(names, key=lambda n: os.stat(many / n).st_ino)[::2])
    forget(many)
    with in_memory(many / n for n in names if n not in cold):
        made, ahead = copied(tmp_path, [built("bin/cp"), "-a", many, target], many, cold=False)
    assert contents(target) == contents(many)
    assert sorted(made) == names and set(ahead) == cold
    assert not falls(places(many, [n for n in made if n in cold]))


def test_mv_in_disk_order(many, ext4, tmp_path, elsewhere):
    source = ext4 / "to move"
    run("cp", "-a", many, source)
    os.sync()
    want, order = contents(source), places(source, sorted(os.listdir(source)))
    order = dict(zip(sorted(os.listdir(source)), order, strict=True))
    made, ahead = copied(tmp_path, [built("bin/mv"), source, elsewhere], source)
    assert contents(elsewhere) == want and not source.exists()
    assert len(made) == 5000 and made == ahead
    assert not falls([order[n] for n in made])


@pytest.mark.parametrize("options", [("-u",), ("-n",), ("--update=none",), ("-l",), ("-s",), ("--attributes-only",)])
def test_cp_reads_nothing_ahead_that_it_may_not_copy(many, tmp_path, target, options):
    argv = [built("bin/cp"), "-a", *options, many, target]
    made, ahead = copied(tmp_path, argv, many)
    assert not ahead
    run(stock("cp"), "-a", *options, many, f"{target}2")
    try:
        assert contents(target) == contents(f"{target}2")
    finally:
        shutil.rmtree(f"{target}2")


@pytest.mark.parametrize("options", [("-a",), ("-rL",), ("-r",), ("-a", "--sparse=never"), ("-a", "--reflink=never")])
def test_cp_same_tree(tree, target, options):
    """Hard links, holes, long names, attributes, a directory that may not be written to."""
    for where, program in ((target, built("bin/cp")), (f"{target}2", stock("cp"))):
        # Without the FIFO, which cp -rL would wait for.
        shutil.rmtree(where, ignore_errors=True)
        run("rsync", "-aHSX", "--exclude=fifo", f"{tree}/", f"{where}.from/")
        forget(f"{where}.from")
        run(program, *options, f"{where}.from", where)
    try:
        ours, theirs = contents(target), contents(f"{target}2")
        if "-a" not in options:  # copies have the time of copying
            for side in (ours, theirs):
                for what in side[0].values():
                    what[3] = 0
        assert ours == theirs
        if "-a" in options:
            assert ours == contents(f"{target}.from")
        if "--sparse=never" not in options:
            assert (target / "holes").stat().st_blocks < 9 << 10
    finally:
        for name in ("2", ".from", "2.from"):
            run("chmod", "-R", "u+w", f"{target}{name}")
            shutil.rmtree(f"{target}{name}")


def test_cp_and_mv_odd_names(ext4, target, elsewhere):
    top = ext4 / "odd for cp"
    top.mkdir()
    names = [b"\xff\xfe", b"new\nline", b" ", b"-rf", b"a\\b", b'"', b"'", b"*", b"n" * 255, "\u4e16".encode() * 80]
    names += [b"plain%d" % n for n in range(20)]
    for name in names:
        with open(os.path.join(os.fsencode(top), name), "wb") as handle:
            handle.write(name * 9)
    (top / "dir").mkdir()
    (top / "dir" / "in").write_text("x")
    want = contents(top)
    forget(top)
    run(built("bin/cp"), "-a", top, target)
    assert contents(target) == want
    forget(top)
    run(built("bin/mv"), top, elsewhere)
    assert contents(elsewhere) == want and not top.exists()


def test_cp_errors(ext4):
    """What cannot be read, and what cannot be copied into itself: as the unpatched one says and does."""
    results = []
    for program in (built("bin/cp"), stock("cp")):
        top = ext4 / "wrong"
        (top / "dir").mkdir(parents=True)
        for number in range(30):
            (top / f"f{number}").write_text(f"{number}\n")
            (top / "dir" / f"g{number}").write_text(f"{number}\n")
        forget(top)
        os.chmod(top / "f7", 0)
        argv = [program, "-r", "wrong", "copy"]
        if not os.geteuid():  # without root's right to read everything
            argv = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *argv]
        first = run(*argv, ok=False, cwd=ext4)
        copy = contents(ext4 / "copy")[0]
        os.chmod(top / "f7", 0o644)
        forget(top)
        second = run(program, "-r", "wrong", "wrong/into", ok=False, cwd=ext4)
        output = (first.stderr + second.stderr).replace(str(program), "cp")
        assert set(os.listdir(top / "into")) >= {f"f{n}" for n in range(30)} or program == stock("cp")
        results.append((first.returncode, second.returncode, output, sorted((n, w[-2]) for n, w in copy.items())))
        shutil.rmtree(top)
        shutil.rmtree(ext4 / "copy")
    assert results[0] == results[1]
    assert results[0][:2] == (1, 1)


@pytest.fixture(scope="module")
def crowd(ext4):
    """More names than are taken at a time where their data comes in order, some directories among them."""
    where = ext4 / "crowd"
    where.mkdir()
    for number in range(70_000):
        if number % 1000:
            (where / f"{number * 2654435761 % 2**32:08x}").write_text(f"{number}\n")
        else:
            (where / f"d{number}").mkdir()
            (where / f"d{number}" / "in").write_text("x")
    os.sync()
    yield where
    shutil.rmtree(where)


def peak(*argv):
    """The most memory that a program had, KiB."""
    with subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert not child.returncode
    return usage.ru_maxrss


def test_cp_in_stretches(crowd, tmp_path, target):
    made, ahead = copied(tmp_path, [built("bin/cp"), "-a", crowd, target], crowd)
    assert contents(target) == contents(crowd)
    assert made == ahead and len(made) == 70_000 - 70
    assert falls(places(crowd, made)) <= 1


@pytest.mark.parametrize(("env", "rows"), [({}, 1), ({"DISKORDER_MEMORY": "1"}, 2)])
def test_cp_of_many_out_of_order(crowd, tmp_path, target, env, rows):
    """As many at a time as may be remembered (28 bytes each), where that betters the order; held open meanwhile."""
    files = [crowd / f"{n * 2654435761 % 2**32:08x}" for n in range(70_000) if n % 1000]
    for path in files[::7]:
        path.write_text("no longer where it was\n" * 200)
    os.sync()
    assert falls(places(crowd, [path.name for path in files])) > 5_000
    made, ahead = copied(tmp_path, [built("bin/cp"), "-a", crowd, target], crowd, env=env)
    assert contents(target) == contents(crowd)
    assert made == ahead and len(made) == len(files)
    assert falls(places(crowd, made)) == rows - 1


def test_memory(crowd, target):
    """Little more than the unpatched ones take: 28 bytes a name in cp, 32 MiB at most in ls."""
    assert peak(built("bin/ls"), "-l", crowd) < peak(stock("ls"), "-l", crowd) + (34 << 10)
    forget(crowd)
    assert peak(built("bin/cp"), "-a", crowd, target) < peak(stock("cp"), "-a", crowd, f"{target}/2") + (3 << 10)


def test_help_and_manual():
    for name in ("ls", "cp", "mv"):
        assert "DISKORDER=off" in run(built(f"bin/{name}"), "--help").replace("\n", " ")
        assert "DISKORDER=off" in built(f"share/man/man1/{name}.1").read_text()


@pytest.mark.parametrize("name", ["cp", "mv"])
def test_xfs_to_another_file_system(target, tmp_path, name):
    """Nothing can be cloned: read in disk order.  Within XFS cp may clone, and nothing is read ahead."""
    if os.geteuid() or not shutil.which("mkfs.xfs"):
        pytest.skip("root and mkfs.xfs are needed")
    image = tmp_path / "xfs"
    with open(image, "wb") as handle:
        handle.truncate(512 << 20)
    run("mkfs.xfs", "-q", image)
    with loop_mounted(image, tmp_path / "mnt") as where:
        source = make_many(where / "many", 300)
        if name == "cp":
            made, ahead = copied(tmp_path, [built("bin/cp"), "-a", source, where / "copy"], source)
            assert len(made) == 300 and not ahead
            assert contents(where / "copy") == contents(source)
        before = contents(source)
        by_name = {n: first_extent(source / n) for n in os.listdir(source)}
        made, ahead = copied(tmp_path, [built(f"bin/{name}"), *["-a"] * (name == "cp"), source, target], source)
        assert contents(target) == before
        assert sorted(ahead) == sorted(made) == sorted(by_name)
        assert not falls([by_name[n] for n in made])
