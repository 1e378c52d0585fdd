# SPDX-License-Identifier: GPL-2.0-only
"""e2image and e2undo: what is saved of a file system with trees comes back as it was."""

import hashlib
import re

import pytest
from conftest import FILES, ITREE_FL, Image, make, run


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(image, tmp_path, names):
    """What some of the files hold, as debugfs reads them."""
    found = []
    for number, name in enumerate(names):
        image.debugfs(f"dump {name} {tmp_path / f'dumped-{number}'}")
        found.append((tmp_path / f"dumped-{number}").read_bytes())
    return found


# --- e2image


@pytest.mark.parametrize("how", ["-ra", "-Qa"])
def test_image_with_data(image, tmp_path, how):
    some = ["/file", "/small/file-7", "/small/file-19", f"/big/{image.names()[FILES // 2][0]}"]
    before = contents(image, tmp_path, some)
    assert before[:2] == [b"a file\n", b"7\n"]
    made, raw = tmp_path / "made", Image(tmp_path / "raw.img")
    run("e2image", how, image.path, made)
    if how == "-Qa":
        run("e2image", "-r", made, raw.path)
    else:
        made.rename(raw.path)
    assert contents(raw, tmp_path, some) == before
    assert raw.names() == image.names() and raw.keys() == image.keys()
    raw.exact()
    raw.clean()


def test_image_without_data_keeps_all_of_the_trees(image, tmp_path):
    """The blocks of directories and trees, the free nodes too, are metadata."""
    image.debugfs(*(f"rm /big/{name}" for i, (name, _) in enumerate(image.names()) if i % 7), write=True)
    assert int(image.stat()["Free nodes"]) > 0
    raw = Image(tmp_path / "raw.img")
    run("e2image", "-r", image.path, raw.path)
    blocks = image.nodes()
    for block in blocks:
        assert raw.peek(block, 0, 1024) == image.peek(block, 0, 1024), f"node {block}"
    assert raw.stat() == image.stat()
    assert contents(raw, tmp_path, ["/file"]) != [b"a file\n"], "the data is there: -r saved more than metadata"
    # It can be worked on.
    raw.change("itree_drop /big", "itree_build /big")
    raw.exact()
    raw.clean()


def inode_tables(image):
    """(first block, blocks) of each group"""
    out = run("dumpe2fs", image.path)[1]
    found = re.findall(r"Inode table at (\d+)-(\d+)", out)
    assert found
    return [(int(first), int(last) - int(first) + 1) for first, last in found]


def test_restored_inode_tables(image, tmp_path):
    """e2image's own format has no directory blocks: what -I writes back finds the trees where they were."""
    names, keys, saved = image.names(), image.keys(), tmp_path / "saved.e2i"
    run("e2image", image.path, saved)
    size, tables = image.block_size(), inode_tables(image)
    with image.path.open("r+b") as f:
        for first, count in tables:
            f.seek(first * size)
            f.write(bytes(count * size))
    assert image.fsck("-fn")[0] & 4
    run("e2image", "-I", image.path, saved)
    image.clean()
    assert image.names() == names and image.keys() == keys
    image.exact()


def test_a_changed_tree_is_not_restored_silently(one, tmp_path):
    """-I of an image that is older than the directory: e2fsck sees that the tree is another one, and makes it right."""
    saved = tmp_path / "saved.e2i"
    run("e2image", one.path, saved)
    one.debugfs(*(f"rm /big/{name}" for name, _ in one.names()[:1500]), write=True)
    one.clean()
    left = {name for name, _ in one.names()}
    run("e2image", "-I", one.path, saved)
    assert one.fsck("-fn")[0] == 4
    code, out = one.fsck("-fy")
    assert code == 1, out
    one.clean()
    one.exact()
    assert left <= {name for name, _ in one.names()}


# --- e2undo


def fewer(image):
    return [f"rm /big/{name}" for i, (name, _) in enumerate(image.names()) if i % 3]


def more(image):
    return [*(f"ln /file /big/new-{i:05}-{'n' * (i % 90)}" for i in range(1500)), "sif /file links_count 1501"]


def by_debugfs(commands):
    def change(image, undo):
        script = image.path.with_suffix(".undo-cmds")
        script.write_text("".join(f"{c}\n" for c in commands(image)))
        run("debugfs", "-w", "-z", undo, "-f", script, image.path)

    return change


def by_tool(name, *args, ok=(0,), prepare=None):
    def change(image, undo):
        if prepare:
            prepare(image)
            # The state to come back to is that after the preparation.
            image.before = digest(image.path)
        run(name, *args, "-z", undo, image.path, ok=ok)

    return change


def age(image):
    image.debugfs(*fewer(image), write=True)


def break_tree(image):
    image.poke(0, 0, b"\0\0\0\0")


CHANGES = {
    "debugfs-more": by_debugfs(more),
    "debugfs-fewer": by_debugfs(fewer),
    "debugfs-drop": by_debugfs(lambda image: ["itree_drop /big"]),
    "debugfs-poke": by_debugfs(lambda image: ["itree_poke /big 1 0 0000", "itree_poke -c /big 0 500 ff"]),
    "e2fsck-pack": by_tool("e2fsck", "-fyD", ok=(0, 1), prepare=age),
    "e2fsck-repair": by_tool("e2fsck", "-fy", ok=(1,), prepare=break_tree),
    "tune2fs-off": by_tool("tune2fs", "-O", "^itree"),
    "mke2fs": by_tool("mke2fs", "-q", "-F", "-t", "ext4", "-O", "itree", "-b", "1024"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_undone_byte_for_byte(one, what, tmp_path):
    undo = tmp_path / "undo"
    one.before = digest(one.path)
    size = one.path.stat().st_size
    CHANGES[what](one, undo)
    assert digest(one.path) != one.before, "nothing was changed: the test tests nothing"
    assert one.path.stat().st_size == size
    # What it would do, first: nothing is done.
    now = digest(one.path)
    run("e2undo", "-n", undo, one.path)
    assert digest(one.path) == now
    run("e2undo", undo, one.path)
    assert digest(one.path) == one.before
    assert one.has_tree()


def test_undone_one_after_the_other(image, tmp_path):
    """Four tools, each with an undo file of its own; back by the last first."""
    states = []
    for number, what in enumerate(("debugfs-fewer", "e2fsck-pack", "debugfs-drop", "tune2fs-off")):
        states.append((digest(image.path), tmp_path / f"undo-{number}"))
        if what == "e2fsck-pack":
            run("e2fsck", "-fyD", "-z", states[-1][1], image.path, ok=(0, 1))
        else:
            CHANGES[what](image, states[-1][1])
        assert digest(image.path) != states[-1][0], what
        image.clean()
    # Not in this order: the file system has changed since.
    assert run("e2undo", states[0][1], image.path, ok=None)[0] != 0
    for before, undo in reversed(states):
        run("e2undo", undo, image.path)
        assert digest(image.path) == before
    image.clean()
    image.exact()


def test_mke2fs_with_a_directory_undone(tmp_path, source):
    """-d builds trees; all of it is undone, on a device that held a file system with trees."""
    image = make(tmp_path / "fs.img", source, block_size=4096)
    assert image.inode("/big")[1] & ITREE_FL
    before, undo = digest(image.path), tmp_path / "undo"
    argv = ["-q", "-F", "-t", "ext4", "-O", "itree", "-b", 1024, "-N", 6000, "-d", source, "-z", undo]
    run("mke2fs", *argv, image.path)
    assert image.has_tree() and digest(image.path) != before
    run("e2undo", undo, image.path)
    assert digest(image.path) == before
    image.clean()
    image.exact()
