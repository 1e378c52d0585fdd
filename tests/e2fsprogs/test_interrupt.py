# SPDX-License-Identifier: GPL-2.0-only
"""e2fsck stopped between any two of its writes (src/stop.c): another run makes it clean, and no file is lost.

Nor is a name, with one exception that is upstream's: -D writes a directory anew in place, so a *killed* run (^C waits
for the directory's end) can leave names in no block. Their files are found and go to lost+found.
"""

import functools
import os
import pathlib
import random
import signal
import subprocess
import tempfile

import pytest
from conftest import ITREE_FL, tool

HERE = pathlib.Path(__file__).resolve().parent
POINTS = 6  # of each kind, at random; all of them with ITREE_FULL=1


@functools.cache
def stopper():
    out = pathlib.Path(tempfile.mkdtemp(prefix="itree-stop-")) / "stop.so"
    argv = ["gcc", "-std=gnu11", "-O2", "-Wall", "-shared", "-fPIC", "-o", out, HERE / "src" / "stop.c", "-ldl"]
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert res.returncode == 0, f"stop.c does not compile:\n{res.stderr}"
    return out


def e2fsck(image, options, at=0, sig=signal.SIGKILL):
    """Runs it, stopped before write number `at`; returns (exit code, output, writes if it came to its end)."""
    counted = image.path.with_suffix(".writes")
    counted.unlink(missing_ok=True)
    env = {**os.environ, "LC_ALL": "C", "LD_PRELOAD": str(stopper()), "ITREE_STOP_AT": str(at),
           "ITREE_STOP_SIGNAL": str(int(sig)), "ITREE_STOP_COUNT": str(counted)}  # fmt: skip
    res = subprocess.run([tool("e2fsck"), *options, image.path], env=env, stdin=subprocess.DEVNULL, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False)  # fmt: skip
    return res.returncode, res.stdout, int(counted.read_text()) if counted.exists() else None


def age(image):
    """Poorly filled leaves and nodes, so that -D has much to do, and files that have two names."""
    names = [name for name, _ in image.names()]
    image.debugfs(*(f"rm /big/{name}" for i, name in enumerate(names) if i % 3 == 1), write=True)
    left = names[::3]
    image.debugfs(*(f"ln /big/{n} /big/two-{n}" for n in left), *(f"sif /big/{n} links_count 2" for n in left),
                  write=True)  # fmt: skip
    image.clean()
    image.exact()


def break_node(image):
    image.poke(1, 0, b"\0\0\0\0")


def break_root(image):
    image.poke(0, 0, b"\0\0\0\0")


def no_flag(image):
    image.set_flags("/big", off=ITREE_FL)


def wrong_keys(image):
    image.poke(1, 16, (4000).to_bytes(4, "little"))


WORK = {
    "pack": (("-fyD",), None),
    "rebuild-root": (("-fy",), break_root),
    "rebuild-leaf": (("-fy",), break_node),
    "wrong-keys": (("-fy",), wrong_keys),
    "no-flag": (("-fy",), no_flag),
}


@pytest.fixture(scope="module")
def aged(masters, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("aged"), {}

    def get(config):
        if config not in made:
            made[config] = masters(config).copy(folder / f"{config}.img")
            age(made[config])
        return made[config]

    return get


def files(image):
    """{inode: names in /big and in lost+found}"""
    found = {}
    for folder in ("/big", "/lost+found"):
        for name, ino in image.names(folder):
            found.setdefault(ino, set()).add(f"{folder}/{name}")
    return found


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
@pytest.mark.parametrize("what", WORK)
def test_stopped(aged, tmp_path, what, sig):
    config = "4k-nocsum" if what == "wrong-keys" else "1k-csum"
    options, damage = WORK[what]
    start = aged(config).copy(tmp_path / "start.img")
    before = files(start)
    assert len(before) > 1500 and sum(map(len, before.values())) > len(before) + 500
    if damage:
        damage(start)
    code, out, writes = e2fsck(whole := start.copy(tmp_path / "whole.img"), options)
    assert code in (0, 1), out
    assert files(whole) == before
    assert writes and writes > 3, f"{writes} writes: nothing to interrupt"
    points = range(1, writes + 1)
    if not os.environ.get("ITREE_FULL") and writes > POINTS:
        points = sorted(random.Random(f"{config} {what} {sig}").sample(points, POINTS))
    stopped = 0
    for at in points:
        image = start.copy(tmp_path / "fs.img")
        code, out, _ = e2fsck(image, options, at, sig)
        stopped += code == -sig or bool(code & 32)
        again, output = image.fsck("-fy")
        where = f"stopped at write {at} of {writes}, exit code {code}"
        assert again in (0, 1), f"{where}\n{out}\n{output}"
        image.clean()
        after = files(image)
        lost = before.keys() - after.keys()
        assert not lost, f"{where}: {len(lost)} files are gone, the first is inode {min(lost)}\n{output[-2000:]}"
        if what != "pack" or sig == signal.SIGINT:
            assert after == before, f"{where}: other names\n{output[-2000:]}"
        if image.has_tree():
            image.exact()
        code, out = image.fsck("-fyD")
        assert code in (0, 1), out
        assert files(image) == after
        assert image.has_tree()
        image.exact()
    # What is interrupted while it writes the last blocks comes to its end.
    want = len(points) if sig == signal.SIGKILL else what == "pack"
    assert stopped >= want, f"{stopped} of {len(points)} runs were stopped: the test tests too little"


def test_the_writes_are_counted(aged, tmp_path):
    """The Nth write is the one that is not made; -fn makes none."""
    image = aged("1k-csum").copy(tmp_path / "fs.img")
    code, out, writes = e2fsck(image, ("-fn",))
    assert (code, writes) == (0, 0), out
    break_root(image)
    before = image.path.read_bytes()
    code, _, writes = e2fsck(image, ("-fy",), 1)
    assert (code, writes) == (-signal.SIGKILL, None)
    assert image.path.read_bytes() == before
    writes = e2fsck(image.copy(tmp_path / "whole.img"), ("-fy",))[2]
    code, _, _ = e2fsck(image, ("-fy",), writes // 2)
    assert code == -signal.SIGKILL
    assert image.path.read_bytes() != before
    assert image.fsck("-fy")[0] == 1
    image.clean()
    # A tree that is gone comes back with -D.
    assert image.fsck("-fyD")[0] in (0, 1)
    image.exact()
