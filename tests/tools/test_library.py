# SPDX-License-Identifier: GPL-2.0-only
"""libdiskorder under sanitizers, and the preload with its command."""

import os
import pathlib
import re
import shutil

import pytest
from conftest import HERE, built, falls, loop_mounted, named_in_order, run

ORDER = "import os, sys; print('\\n'.join(f'{e.inode()} {e.name}' for e in os.scandir(sys.argv[1])))"
WARN = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror")


def tap(text):
    """Fail unless every planned test was run and passed."""
    good = re.findall(r"^ok ", text, re.M)
    bad = re.findall(r"^not ok .*", text, re.M)
    plan = re.search(r"^1\.\.(\d+)$", text, re.M)
    assert not bad
    assert plan and int(plan[1]) == len(good) > 0


def compile_unit(name, folder):
    out = folder / "test"
    run("gcc", *WARN, "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all", HERE / "tests" / f"test_{name}.c", *sorted((HERE / "lib").glob("*.c")),
        "-o", out)  # fmt: skip
    return out


@pytest.fixture(scope="module", params=["reader", "window", "cached", "merge"])
def unit(request, tmp_path_factory):
    return compile_unit(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("seed", [20261121, 2, 3] + list(range(100, 140)) * bool(os.environ.get("ITREE_FULL")))
def test_unit(unit, seed, ext4):
    tap(run(unit, seed, ext4))


def test_small_read_ahead(tmp_path):
    """A device that reads 16 KiB at a call: files are still read whole."""
    image = tmp_path / "image"
    with open(image, "wb") as handle:
        handle.truncate(64 << 20)
    run("mke2fs", "-q", "-t", "ext4", "-F", image)
    with loop_mounted(image, tmp_path / "mnt") as where:
        disk = pathlib.Path(run("findmnt", "-no", "SOURCE", where).strip()).name
        limits = [pathlib.Path(f"/sys/block/{disk}/queue/{n}") for n in ("read_ahead_kb", "max_sectors_kb")]
        before = [limit.read_text() for limit in limits]
        try:
            for limit in limits:
                limit.write_text("16")
            tap(run(compile_unit("cached", tmp_path), 1, where))
        finally:
            # A loop device keeps them for its next image.
            for limit, value in zip(limits, before, strict=True):
                limit.write_text(value)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    out = tmp_path_factory.mktemp("calls") / "test_preload"
    run("gcc", *WARN, HERE / "tests" / "test_preload.c", "-o", out, "-lpthread")
    return out


def test_calls_of_the_c_library(calls, many):
    """The test holds for the C library alone, too."""
    tap(run(calls, many, 5000))


@pytest.mark.parametrize("env", [{}, {"DISKORDER_MEMORY": "1"}, {"DISKORDER": "off"}])
def test_calls_preloaded(calls, many, env):
    tap(run(built("bin/diskorder"), calls, many, 5000, *["sorted"] * (not env), env=env))


def inodes(text):
    return [int(line.split()[0]) for line in text.splitlines()]


def test_python_sees_inode_order(many):
    plain = run("python3", "-c", ORDER, many)
    ours = run(built("bin/diskorder"), "python3", "-c", ORDER, many)
    off = run(built("bin/diskorder"), "python3", "-c", ORDER, many, env={"DISKORDER": "off"})
    assert sorted(plain.splitlines()) == sorted(ours.splitlines())
    assert len(plain.splitlines()) == 5000
    assert off == plain
    numbers = inodes(ours)
    assert sum(b < a for a, b in zip(numbers, numbers[1:], strict=False)) <= 2


@pytest.mark.parametrize(
    ("memory", "held", "ordered"),
    [(128, 0, True), (129, 0, True), (2048, 0, True), (100, 1, True), (128, 1, False), (32, 4, False)],
)
def test_memory_of_all_streams(many, memory, held, ordered):
    """All that are open share 128 MiB, or what one may take; the last of them gets what is left."""
    code = f"import os, sys; held = [os.scandir(sys.argv[1]) for _ in range({held})]; {ORDER}"
    numbers = inodes(run(built("bin/diskorder"), "-m", memory, "python3", "-c", code, many))
    assert len(numbers) == 5000
    assert (falls(numbers) <= 2) == ordered


@pytest.mark.parametrize("argv", [("find", "."), ("ls", "-U"), ("du", "-a", "."), ("rm", "-rv", "--", "copy")])
def test_same_names(many, argv):
    results = []
    for wrapper in ([], [built("bin/diskorder")]):
        if argv[0] == "rm":
            run("cp", "-a", many, many.parent / "copy")
        results.append(sorted(run(*wrapper, *argv, cwd=many.parent if argv[0] == "rm" else many).splitlines()))
    assert results[0] == results[1]
    assert len(results[0]) >= 5000


@pytest.mark.parametrize("name", ["du", "dir"])
def test_programs_that_sort_by_themselves(ext4, tmp_path, name):
    """A large directory is left to the fts of those that have one."""
    top, program = ext4 / "fts", tmp_path / name
    shutil.copy("/usr/bin/ls", program)
    try:
        top.mkdir()
        for number in range(40_000):
            (top / f"{number:040}").touch()
        given = inodes(run(built("bin/diskorder"), program, "-iU", top))
        plain = inodes(run(program, "-iU", top))
    finally:
        shutil.rmtree(top)
    assert sorted(given) == sorted(plain) and len(given) == 40_000
    # The name that a window starts with and the one behind it may both be falls.
    assert falls(given) <= 2 if name == "dir" else given == plain
    assert given != plain or name == "du"


def test_command():
    tool = built("bin/diskorder")
    assert "usage: diskorder" in run(tool, "--help")
    assert run(tool, "sh", "-c", "exit 7", ok=False).returncode == 7
    for wrong in ([], ["-m", "x", "ls"], ["-m", "0", "ls"], ["-m", "99999", "ls"], ["--nonsense", "ls"]):
        res = run(tool, *wrong, ok=False)
        assert res.returncode == 2 and res.stderr.startswith("diskorder: "), wrong
    assert run(tool, "-m", "64", "sh", "-c", "echo $DISKORDER_MEMORY") == "64\n"
    text = built("share/man/man1/diskorder.1").read_text()
    for word in ("DISKORDER", "DISKORDER_MEMORY", "telldir", "\\-m"):
        assert word in text


STATS = ("lstat", "stat", "newfstatat", "statx")


def test_examples_gain(many, tmp_path):
    """The commands that the man page gives look at inodes in order, and do not by themselves."""
    page = built("share/man/man1/diskorder.1").read_text().split(".SH EXAMPLES")[1].split(".SH")[0]
    examples = [line.replace("\\-", "-").split() for line in page.splitlines() if line.startswith("diskorder ")]
    assert len(examples) >= 2
    for example in examples:
        orders = []
        for wrapper in ([], [built("bin/diskorder")]):
            out = tmp_path / "trace"
            argv = [str(many) if word == "/srv/mail" else word for word in example[1:]]
            calls = ",".join(f"?{c}" for c in STATS)
            run("strace", "-f", "-y", "-o", out, "-e", f"trace={calls}", *wrapper, *argv)
            orders.append(falls([os.stat(many / n).st_ino for n in named_in_order(out, STATS, many)]))
        assert orders[0] > 1000 and orders[1] <= 2, example


def test_elsewhere_the_order_stays():
    """/proc has no inode order to speak of."""
    plain = run("python3", "-c", ORDER, "/proc/sys/kernel")
    assert run(built("bin/diskorder"), "python3", "-c", ORDER, "/proc/sys/kernel") == plain
