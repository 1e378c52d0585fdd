# SPDX-License-Identifier: GPL-2.0-only
"""mke2fs, tune2fs, dumpe2fs, lsattr's names, debugfs, resize2fs, e2image, the library."""

import os
import re

import pytest
from bigdir import mounted
from conftest import FILES, INDEX_FL, ITREE_FL, Image, maildir_name, make, run


def features(image):
    return re.search(r"Filesystem features: +(.*)", run("dumpe2fs", "-h", image.path)[1])[1].split()


def test_mke2fs_sets_the_feature(tmp_path):
    image = make(tmp_path / "fs.img")
    assert "itree" in features(image)
    assert "FEATURE_R30" not in features(image)
    image.clean()


def test_mke2fs_leaves_the_feature_off_unless_asked(tmp_path):
    assert "itree" not in features(make(tmp_path / "fs.img", features="extent"))


@pytest.mark.parametrize(
    "off, reason",
    [("^dir_index", "without dir_index"), ("^extent,^64bit", "without extents")],
)
def test_mke2fs_refuses_what_cannot_be(tmp_path, off, reason):
    code, out = run("mke2fs", "-q", "-F", "-t", "ext4", "-O", f"itree,{off}", tmp_path / "fs.img", "16M", ok=None)
    assert code != 0
    assert "itree" in out and reason in out


def test_tune2fs_clears_the_feature_and_frees_the_trees(image):
    names = image.names()
    run("tune2fs", "-O", "^itree", image.path)
    assert "itree" not in features(image)
    assert not image.has_tree() and not image.has_segment()
    image.clean()
    assert image.names() == names


def test_tune2fs_sets_the_feature_and_trusts_no_old_tree(one):
    run("tune2fs", "-O", "^itree", one.path)
    one.set_flags("/big", on=ITREE_FL)
    run("tune2fs", "-O", "itree", one.path)
    assert "itree" in features(one)
    assert not one.has_tree()
    one.clean()
    one.fsck("-fyD", ok=(0, 1))
    one.exact()


def test_tune2fs_keeps_what_the_feature_needs(one):
    code, out = run("tune2fs", "-O", "^dir_index", one.path, ok=None)
    assert code != 0 and "itree" in out
    assert "dir_index" in features(one)
    one.clean()


def test_tune2fs_keeps_fast_commits_away(one):
    before = one.path.read_bytes()
    for words in ("fast_commit", "^itree,itree,fast_commit"):
        code, out = run("tune2fs", "-O", words, one.path, ok=None)
        assert code != 0 and "not compatible" in out, words
        assert one.path.read_bytes() == before
    run("tune2fs", "-O", "^itree,fast_commit", one.path)
    assert {"itree", "fast_commit"} & set(features(one)) == {"fast_commit"}
    one.clean()
    code, out = run("tune2fs", "-O", "itree", one.path, ok=None)
    assert code != 0 and "not compatible" in out
    run("tune2fs", "-O", "itree,^fast_commit", one.path)
    assert {"itree", "fast_commit"} & set(features(one)) == {"itree"}
    one.clean()


def test_tune2fs_works_with_both_features(one):
    """As set by a release of before: everything else goes on to work, and each can be cleared."""
    one.debugfs("feature fast_commit", write=True)
    assert {"itree", "fast_commit"} <= set(features(one))
    run("tune2fs", "-c", "7", one.path)
    one.exact()
    run("tune2fs", "-O", "^fast_commit", one.path)
    assert {"itree", "fast_commit"} & set(features(one)) == {"itree"}
    one.clean()
    one.exact()


@pytest.mark.parametrize("args", [("-O", "^metadata_csum"), ("-U", "random"), ("-O", "metadata_csum_seed")])
def test_tune2fs_changes_checksums(one, args):
    names = one.names()
    # Stock tune2fs leaves the orphan file's checksums behind.
    run("tune2fs", "-O", "^orphan_file", one.path)
    run("tune2fs", "-f", *args, one.path)
    code, out = one.fsck("-fn")
    assert code == 0, out
    assert one.names() == names
    one.fsck("-fyD", ok=(0, 1))
    one.exact()


def test_flag_names(one):
    assert one.inode("/big")[1] & (ITREE_FL | INDEX_FL) == ITREE_FL | INDEX_FL
    assert "itree" in one.debugfs("features")


def test_small_directories_get_no_tree(one):
    assert not one.has_tree("/small") and not one.has_tree("/")


# --- debugfs ---


def test_debugfs_dump(image):
    names = image.names()
    keys = image.keys()
    assert len(keys) == len(names) == FILES
    assert keys == sorted(keys)
    image.exact()
    nodes = image.nodes()
    assert nodes[0][:2] == ("root", 1)
    leaves = [n for n in nodes.values() if n[1] == 0]
    assert sum(count for _, _, count, _ in leaves) == FILES
    assert all(count == limit for _, _, count, limit in leaves[:-1])


def test_debugfs_dump_shows_entries_and_children(one):
    out = one.debugfs("itree_dump /big") + "\n"
    for ino, key_hash in one.keys():
        assert f": {ino} 0x{key_hash:08x}\n" in out
    assert re.search(r"Entry #0: 0 0x00000000 -> block 2147483649\n", out)


def test_debugfs_stat(one):
    stat = one.stat()
    nodes = one.nodes()
    assert int(stat["Keys"]) == FILES
    assert int(stat["Nodes"]) == int(stat["Blocks"]) == len(nodes)
    assert int(stat["Depth"]) == 2
    assert int(stat["Free nodes"]) == 0
    assert float(stat["Leaf fill"].rstrip("%")) > 95


def test_debugfs_lookup(one):
    for ino, key_hash in one.keys()[:: FILES // 7]:
        assert one.debugfs(f"itree_lookup /big {ino}") == f"{ino} 0x{key_hash:08x}"
    assert one.debugfs("itree_lookup /big 4000000") == ""


def test_debugfs_says_why_not(one):
    assert "cannot have" in one.debugfs("itree_verify /small")
    assert "cannot have" in one.debugfs("itree_build /small", write=True)
    assert "irectory" in one.debugfs("itree_build /file", write=True)


def test_debugfs_build_and_drop(image):
    before = image.keys()
    free = re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1]
    image.change("itree_drop /big")
    assert not image.has_tree() and not image.has_segment()
    image.clean()
    image.change("itree_build /big")
    image.clean()
    assert image.keys() == before
    assert re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1] == free
    image.change("itree_build /big")
    image.clean()
    assert image.keys() == before


# --- the library ---


def dirsearch(image, name):
    """debugfs ended by itself if this returns."""
    return run("debugfs", "-R", f"dirsearch /big {name}", image.path, timeout=20)[1]


def test_dirsearch_ends_where_the_directory_does(image):
    names = [name for name, _ in image.names()]
    assert "Entry found at logical block" in dirsearch(image, names[-1])
    for absent in ("absent", names[0][:-1]):
        out = dirsearch(image, absent)
        assert "found" not in out and "corrupted" not in out and "while" not in out, out


def test_dirsearch_goes_on_behind_a_damaged_block(tmp_path, source):
    image = make(tmp_path / "fs.img", source, "itree,^metadata_csum")
    image.fsck("-fyD", ok=(0, 1))
    where = {name: int(re.search(r"logical block (\d+)", dirsearch(image, name))[1]) for name, _ in image.names()[::50]}
    bad = min(where.values())
    # The length of the block's first entry, at byte 4, becomes 0.
    image.change(f"zap_block -f /big -o 4 -l 2 -p 0 {bad}")
    found = {name: "Entry found" in dirsearch(image, name) for name in where}
    assert found == {name: block != bad for name, block in where.items()}
    assert f"block {bad}" in dirsearch(image, "absent")


def test_links_to_one_inode(one):
    """Keys of one inode differ in the hash alone."""
    ino = one.inode("/file")[0]
    # debugfs ln does not count links.
    one.change(*(f"ln /file /big/link-{i}" for i in range(300)), "sif /file links_count 301", "itree_build /big")
    assert len(one.debugfs(f"itree_lookup /big {ino}").splitlines()) == 300
    one.exact()
    one.clean()


@pytest.mark.parametrize(
    "commands",
    [
        ["ln /file another", "sif /file links_count 2"],
        ["mkdir folder"],
        ["symlink symlink target"],
        ["mknod pipe p"],
        ["rm 0000000000000000.msg"],
        ["write /dev/null written"],
    ],
    ids=lambda commands: commands[0].split()[0],
)
def test_a_changed_directory_has_no_stale_tree(image, commands):
    names = image.names()
    image.debugfs("cd /big", *commands, write=True)
    assert image.names() != names, "nothing has changed"
    assert image.has_tree(), "the tree was not kept"
    image.exact()
    image.clean()
    image.fsck("-fyD", ok=(0, 1))
    image.exact()
    image.clean()


def test_the_tree_follows_names_that_come(image):
    """Enough of them to split leaves and htree blocks, and to move the root's free list."""
    ino = image.inode("/file")[0]
    blocks = int(image.stat()["Blocks"])
    new = [f"new-{i * 7919 % 3000:05}-{'n' * (i % 150)}" for i in range(3000)]
    image.change(*(f"ln /file /big/{name}" for name in new), f"sif /file links_count {1 + len(new)}")
    image.exact()
    image.clean()
    assert len(image.names()) == FILES + len(new)
    assert len(image.debugfs(f"itree_lookup /big {ino}").splitlines()) == len(new)
    assert int(image.stat()["Blocks"]) > blocks, "nothing was split: the test tests too little"


def test_the_tree_follows_names_that_go(image):
    names = image.names()
    gone = [name for i, (name, _) in enumerate(names) if i % 10]
    image.debugfs(*(f"rm /big/{name}" for name in gone), write=True)
    image.exact()
    image.clean()
    assert image.names() == [entry for i, entry in enumerate(names) if i % 10 == 0]
    assert int(image.stat()["Free nodes"]) > 0, "nothing was merged: the test tests too little"
    image.debugfs(*(f"rm /big/{name}" for name, _ in names[::10]), write=True)
    assert image.keys() == [] and image.has_tree()
    image.clean()


def test_a_name_that_is_not_there(one):
    keys = one.keys()
    assert "No free space" in one.debugfs("unlink /big/nobody", write=True)
    one.exact()
    one.clean()
    assert keys == one.keys()


def test_a_broken_tree_is_given_up_not_the_name(one):
    one.poke(0, 0, b"\0\0\0\0")
    one.debugfs("ln /file /big/another", "sif /file links_count 2", write=True)
    assert not one.has_tree() and not one.has_segment()
    assert "another" in dict(one.names())
    one.clean()


def test_a_full_device(tmp_path, source):
    """The name that finds no space for its key is there all the same; its directory goes without a tree."""
    image = make(tmp_path / "fs.img", source, "itree,^has_journal", 1024, "8M", ["-m", "0"])
    image.fsck("-fyD", ok=(0, 1))
    free = int(re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1])
    image.debugfs("write /dev/null fill", f"fallocate /fill 0 {free - 1}", write=True)
    names = [f"new-{i:05}" for i in range(3000)]
    image.debugfs(*(f"ln /file /big/{name}" for name in names), write=True)
    there = [name for name, _ in image.names() if name.startswith("new-")]
    assert 0 < len(there) < 3000, "the device was not full: the test tests nothing"
    image.change(f"sif /file links_count {1 + len(there)}")
    assert image.has_tree() or not image.has_segment()
    if image.has_tree():
        image.exact()
    image.clean()


def test_moving_a_directory_keeps_its_tree(one):
    """The entry ".." is not in the tree."""
    one.debugfs("mkdir /below", "ln /big /below/big", "unlink /big", write=True)
    code, out = one.fsck("-fy")
    assert code == 1 and "Itree" not in out, out
    assert one.has_tree("/below/big")
    one.exact("/below/big")
    one.clean()


def test_removing_the_directory_frees_the_tree(one):
    one.debugfs(*(f"rm /big/{name}" for name, _ in one.names()), "rmdir /big", write=True)
    one.clean()


# --- the others ---


def test_e2image_raw(image, tmp_path):
    raw = Image(tmp_path / "raw.img")
    run("e2image", "-r", image.path, raw.path)
    raw.clean()
    raw.exact()


def test_e2image_qcow2(one, tmp_path):
    raw = Image(tmp_path / "raw.img")
    run("e2image", "-Q", one.path, tmp_path / "image.qcow2")
    run("e2image", "-r", tmp_path / "image.qcow2", raw.path)
    raw.clean()
    raw.exact()


def test_e2image_scrambles_names_only(one, tmp_path):
    raw = Image(tmp_path / "raw.img")
    out = run("e2image", "-rs", one.path, raw.path)[1]
    assert "orrupt" not in out
    # The scrambled names have no valid checksums, so go by number.
    assert raw.keys(f"<{one.inode('/big')[0]}>") == one.keys()


def test_resize2fs_grows(one):
    names = one.names()
    run("resize2fs", "-f", one.path, "64M")
    one.clean()
    assert one.names() == names
    one.exact()


def test_resize2fs_shrinks_and_renumbers(tmp_path):
    """Files in high inodes get other numbers; what is left is right and can be rebuilt."""
    folder = tmp_path / "source" / "big"
    folder.mkdir(parents=True)
    for i in range(5000):
        (folder / maildir_name(i)).touch()
    image = make(
        tmp_path / "fs.img", folder.parent, "itree,metadata_csum,^resize_inode", 1024, "64M", ["-g", "2048", "-G", "1"]
    )
    low = sorted(image.names(), key=lambda entry: entry[1])[:2500]
    image.debugfs(*(f"rm /big/{name}" for name, _ in low), write=True)
    image.fsck("-fyD", ok=(0, 1))
    image.exact()
    before = image.names()
    run("resize2fs", "-f", image.path, "36M")
    after = image.names()
    assert [name for name, _ in before] == [name for name, _ in after]
    assert before != after, "no inode was renumbered: the test tests nothing"
    image.clean()
    image.fsck("-fyD", ok=(0, 1))
    image.exact()
    image.clean()


@pytest.mark.parametrize("features", ["itree", "^itree"])
def test_expand_dir_refuses_a_directory_with_an_htree(tmp_path, source, features):
    """ext2fs_expand_dir() appended a block that no entry of the htree leads to."""
    image = make(tmp_path / "fs.img", source, features)
    image.fsck("-fyD", ok=(0, 1))
    assert image.inode("/big")[1] & INDEX_FL and not image.inode("/small")[1] & INDEX_FL
    before = image.path.read_bytes()
    assert "htree" in image.debugfs("expand_dir /big", write=True)
    image.clean()
    assert image.path.read_bytes() == before
    image.change("expand_dir /small")
    image.clean()


def test_e4defrag_passes_by_inline_data(tmp_path):
    image = make(tmp_path / "fs.img", None, "inline_data", extra=["-I", "256"])
    with mounted(image, tmp_path / "mnt", "rw"):
        small, large = (tmp_path / "mnt" / name for name in ("small", "large"))
        small.write_text("inline")
        # Without it the file would pass for one of one block, which upstream passes by.
        os.setxattr(small, "user.block", b"x" * 700)
        large.write_text("x" * 200000)
        os.sync()
        for check in ([], ["-c"]):
            out = run("e4defrag", *check, "-v", tmp_path / "mnt")[1]
            assert f'"{small}"\n\tFile has inline data' in out and str(large) in out
        assert run("e4defrag", small, ok=None)[0] == 1
        assert small.read_text() == "inline"
    image.clean()
