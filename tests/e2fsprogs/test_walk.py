# SPDX-License-Identifier: GPL-2.0-only
"""Random walks on small volumes (tests/walker): a sample, and the shapes of extent trees that walks are about."""

import os
import pathlib
import re
import shutil
import subprocess

import configs
import pytest
import walker

REPO = pathlib.Path(__file__).resolve().parents[2]
FULL = bool(os.environ.get("ITREE_FULL"))
# Enough walks for what test_walks() wants them to have reached
WALKS = 10000 if FULL else 90
SHAPES = 6


def reached(out, what):
    return int(re.search(rf"^ +(\d+) walks: {what}$", out, re.M)[1])


@pytest.mark.timeout(0 if FULL else 900)
def test_walks():
    mounts = ["--mount", "fuse2fs"] if os.path.exists("/dev/fuse") and os.geteuid() == 0 else []
    jobs = ["--jobs", "2"] if FULL else []
    argv = [REPO / "tests" / "walker" / "walk", "--seeds", f"0-{WALKS - 1}", *mounts, *jobs]
    res = subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    print(res.stdout)
    assert res.returncode == 0, res.stdout[-6000:] + res.stderr[-1000:]
    for what in ("depth 2", "depth 3", "a leaf begins with the tree", "an index block does",
                 "a leaf of depth 2 or more does, by growth alone"):  # fmt: skip
        assert reached(res.stdout, what), f"no walk reached: {what}"


@pytest.mark.parametrize("volume", ["1k", "1k-nocsum", "1k-large", "2k", "4k", "1k-bigalloc"])
def test_every_shape_is_sound(volume, tmp_path):
    """The same extents in trees of other shapes: e2fsck has nothing to say, and all names are there."""
    seen = walker.Reached()
    for number in range(SHAPES):
        for limit in (3, 4, 10, 84):
            walk = walker.Walk(number, tmp_path, config=volume)
            shutil.copyfile(configs.template(volume), walk.image)
            walk.model, walk.reached = walker.learn(walk.image), seen
            answer = walk.volume([f"reshape /big {number} {limit} {number % 2}"])[0]
            # A narrow tree would be too deep: nothing has changed.
            assert answer == "ok" or (limit < 10 and "No room" in answer), answer
            walk.check(True)
            code, out = configs.call([configs.tool("debugfs"), "-R", "itree_verify /big", walk.image])
            assert not code and "clean" in out, out
    assert {2, 3} <= seen.depths
    assert seen.leaf_begins


def test_same_seed_same_walk(tmp_path):
    logs = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        walk = walker.Walk(3, tmp_path / folder)
        assert walk.run() is None
        logs.append(walk.log)
    assert logs[0] == logs[1] and len(logs[0]) > 4


def on(volume, tmp_path):
    """A walk that has not begun"""
    walk = walker.Walk(0, tmp_path, config=volume)
    shutil.copyfile(configs.template(volume), walk.image)
    walk.model = walker.learn(walk.image)
    return walk


def remove(walk, names):
    assert set(walk.volume([f"unlink /big/{name}" for name in names])) == {"ok"}
    for name in names:
        walk.model.remove(f"/big/{name}")


@pytest.mark.parametrize("volume", ["1k", "1k-late", "2k"])
def test_no_name_twice_after_a_split(volume, tmp_path):
    """A leaf of the htree that is split holds few names and much room that deleted ones have left."""
    walk = on(volume, tmp_path)
    names = sorted(n for n in walk.model.get("/big").entries if n.startswith("first"))
    remove(walk, [name for number, name in enumerate(names) if number % 5 > 1])
    given = walk.many(count=400)
    given = (given[0].replace(f" {given[2]} /common", " 250 /common"), given[1], 250, "/big")
    assert walk.made(walk.volume([given[0]])[0], given) == 400
    walk.check(True)


def test_quota_of_a_packed_directory(tmp_path):
    """Its extent tree has fewer blocks then."""
    walk = on("1k-quota", tmp_path)
    names = sorted(n for n in walk.model.get("/big").entries if n.startswith("first"))
    remove(walk, names[: len(names) * 2 // 3])
    walk.check(False)
    walk.expect("e2fsck", "-fyD", walk.image, ok=(0, 1))
    walk.check(True)


def test_quota_of_an_indexed_directory(tmp_path):
    """e2fsck -fp indexes it in passing; its extents, a block each, then need a block of their own."""
    walk = on("1k-quota", tmp_path)
    names = [f"/linear/{number:02}".ljust(250, "n") for number in range(15)]
    assert set(walk.volume(["mkdir /linear", *(f"file {name} 0" for name in names)])) == {"ok"}
    walk.model.add("/linear", walker.Node(walker.DIR))
    for name in names:
        walk.model.add(name, walker.Node(walker.FILE, 0, name.rpartition("/")[2]))
    code, out = configs.call([configs.tool("debugfs"), "-R", "ex /linear", walk.image])
    assert not code and " 1 Flags" not in out and len(out.splitlines()) >= 5, out
    walk.check(False)
    walk.check(True)


def test_a_lost_name_is_noticed(tmp_path):
    walk = on("1k", tmp_path)
    walk.check(True)
    name = next(n for n in walk.model.get("/big").entries if n.startswith("first"))
    assert walk.volume([f"unlink /big/{name}"]) == ["ok"]
    with pytest.raises(walker.Failure, match="lost 1 of"):
        walk.check(True)
