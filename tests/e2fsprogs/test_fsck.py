# SPDX-License-Identifier: GPL-2.0-only
"""e2fsck finds every fault of a tree, repairs it in one run, and loses no name."""

import hashlib
import re
import struct

import pytest
from conftest import FILES, FREE_MAGIC, HEAD, INDEX_FL, INFO, ITREE_FL, SEG, make, run

ROOT_ENTRIES = HEAD.size + INFO.size
CSUM_TAIL = 4


def test_clean_tree(image):
    before = hashlib.sha256(image.path.read_bytes()).digest()
    image.clean()
    image.exact()
    assert hashlib.sha256(image.path.read_bytes()).digest() == before, "-n wrote to the image"


def test_clean_tree_with_free_nodes(image):
    """The kernel keeps spare nodes on the free list."""
    free_nodes(image)
    assert image.stat()["Free nodes"] == "2"
    image.clean()


# --- faults: each makes one in /big; what it says in the end must match ---


def info(image):
    return INFO.unpack(image.peek(0, HEAD.size, INFO.size))


def set_info(image, keys=None, blocks=None, head=None, count=None, version=None):
    new = [
        old if want is None else want
        for old, want in zip(info(image), (keys, blocks, head, count, version), strict=True)
    ]
    image.poke(0, HEAD.size, INFO.pack(*new))


def free_nodes(image, loop=False):
    """Adds two nodes to the segment and the free list, or a list that leads back."""
    blocks = info(image)[1]
    image.debugfs(f"bmap -a /big {SEG + blocks}", f"bmap -a /big {SEG + blocks + 1}", write=True)
    a, b = blocks, blocks + 1
    bs = image.block_size()
    for n, following in ((a, SEG + b), (b, SEG + a if loop else 0)):
        image.poke(n, 0, HEAD.pack(FREE_MAGIC, 1, 0, 0, 0, 0, following) + bytes(bs - HEAD.size))
    set_info(image, blocks=blocks + 2, head=SEG + a, count=3 if loop else 2)


def head(image, block):
    return list(HEAD.unpack(image.peek(block, 0, HEAD.size)))


def set_head(image, block, **fields):
    names = ("magic", "version", "level", "count", "limit", "reserved", "next")
    new = [fields.get(name, old) for name, old in zip(names, head(image, block), strict=True)]
    image.poke(block, 0, HEAD.pack(*new))


def bad_checksum(image):
    image.poke(2, image.block_size() - CSUM_TAIL, b"\x12\x34\x56\x78", keep_csum=True)


def bad_root_checksum(image):
    image.poke(0, image.block_size() - CSUM_TAIL, b"\x12\x34\x56\x78", keep_csum=True)


def damaged_bytes(image):
    image.poke(2, 100, b"\xff" * 40, keep_csum=True)


def bad_magic(image):
    set_head(image, 1, magic=0)


def bad_root_magic(image):
    set_head(image, 0, magic=0xDEADBEEF)


def bad_version(image):
    set_head(image, 0, version=9)


def out_of_order(image):
    a, b = image.peek(1, HEAD.size, 8), image.peek(1, HEAD.size + 8, 8)
    image.poke(1, HEAD.size, b + a)


def wrong_level(image):
    set_head(image, 1, level=3)


def count_beyond_limit(image):
    set_head(image, 1, count=60000)


def child_outside(image):
    image.poke(0, ROOT_ENTRIES + 12 + 8, struct.pack("<I", 77))


def child_is_root(image):
    image.poke(0, ROOT_ENTRIES + 12 + 8, struct.pack("<I", SEG))


def child_twice(image):
    image.poke(0, ROOT_ENTRIES + 12 + 8, struct.pack("<I", SEG + 1))


def wrong_count_in_root(image):
    set_info(image, keys=info(image)[0] + 1)


def absurd_count_in_root(image):
    set_info(image, keys=2**63)


def absurd_blocks(image):
    set_info(image, blocks=0x7FFFFFF0)


def wrong_hash_version(image):
    set_info(image, version=info(image)[4] ^ 3)


def free_list_loop(image):
    free_nodes(image, loop=True)


def free_node_in_use(image):
    set_info(image, head=SEG + 1, count=1)


def lost_block(image):
    free_nodes(image)
    set_info(image, head=0, count=0)


def missing_key(image):
    n = max(image.nodes())
    _, _, _, count, *_ = head(image, n)
    set_head(image, n, count=count - 1)
    set_info(image, keys=info(image)[0] - 1)


def extra_key(image):
    n = max(image.nodes())
    _, _, _, count, *_ = head(image, n)
    image.poke(n, HEAD.size + 8 * count, struct.pack("<II", 0x7FFFFFFF, 0x2468ACE0))
    set_head(image, n, count=count + 1)
    set_info(image, keys=info(image)[0] + 1)


def wrong_hash(image):
    ino, name_hash = struct.unpack("<II", image.peek(2, HEAD.size + 8 * 5, 8))
    image.poke(2, HEAD.size + 8 * 5, struct.pack("<II", ino, name_hash ^ 0x100))


def odd_hash(image):
    ino, name_hash = struct.unpack("<II", image.peek(2, HEAD.size + 8 * 5, 8))
    image.poke(2, HEAD.size + 8 * 5, struct.pack("<II", ino, name_hash | 1))


def wrong_inode(image):
    """The same inode twice, another one not at all."""
    a = image.peek(1, HEAD.size + 8 * 3, 8)
    image.poke(1, HEAD.size + 8 * 4, a)


def root_block_unmapped(image):
    image.debugfs(f"punch /big {SEG} {SEG}", write=True)


def leaf_block_unmapped(image):
    image.debugfs(f"punch /big {SEG + 2} {SEG + 2}", write=True)


def flag_without_segment(image):
    image.change("itree_drop /big")
    image.set_flags("/big", on=ITREE_FL)


CORRUPT = "Itree of directory inode .* is corrupt"
CONTENTS = "Itree of directory inode .* does not match"
FAULTS = {
    bad_checksum: CORRUPT,
    bad_root_checksum: CORRUPT,
    damaged_bytes: CORRUPT,
    bad_magic: CORRUPT,
    bad_root_magic: CORRUPT,
    bad_version: CORRUPT,
    out_of_order: CORRUPT,
    wrong_level: CORRUPT,
    count_beyond_limit: CORRUPT,
    child_outside: CORRUPT,
    child_is_root: CORRUPT,
    child_twice: CORRUPT,
    wrong_count_in_root: CORRUPT,
    absurd_count_in_root: CORRUPT,
    absurd_blocks: CORRUPT,
    wrong_hash_version: CORRUPT,
    free_list_loop: CORRUPT,
    free_node_in_use: CORRUPT,
    lost_block: CORRUPT,
    missing_key: CONTENTS,
    extra_key: CONTENTS,
    wrong_hash: CONTENTS,
    odd_hash: None,  # whichever the core says
    wrong_inode: CONTENTS,
    root_block_unmapped: CORRUPT,
    leaf_block_unmapped: CORRUPT,
    flag_without_segment: "itree flag set but no itree blocks",
}
NEED_CSUM = {bad_checksum, bad_root_checksum}


def refix_csum_free(image, fault):
    """Without metadata_csum the checksum field is 0 and says nothing."""
    if fault in NEED_CSUM and "metadata_csum" not in run("dumpe2fs", "-h", image.path)[1]:
        pytest.skip("no checksums here")


def check_found(image, pattern):
    before = hashlib.sha256(image.path.read_bytes()).digest()
    code, out = image.fsck("-fn")
    assert code == 4, f"-fn: exit code {code}\n{out}"
    if pattern:
        assert re.search(pattern, out), out
    assert hashlib.sha256(image.path.read_bytes()).digest() == before, "-n wrote to the image"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_fault(image, fault, tmp_path):
    refix_csum_free(image, fault)
    names = image.names()
    fault(image)
    check_found(image, FAULTS[fault])
    preened = image.copy(tmp_path / "preened.img")

    code, out = image.fsck("-fy")
    assert code == 1, out
    image.clean()
    assert image.names() == names
    assert image.has_tree()
    image.exact()
    assert image.stat()["Free nodes"] == "0", "not packed"

    code, out = preened.fsck("-fp")
    assert code == 1, out
    preened.clean()
    assert preened.names() == names
    preened.exact()


def test_answering_no_changes_nothing(one):
    bad_magic(one)
    before = hashlib.sha256(one.path.read_bytes()).digest()
    code, _ = one.fsck("-fn")
    assert code == 4
    assert hashlib.sha256(one.path.read_bytes()).digest() == before


# --- flags and segments that do not belong together ---


def test_segment_without_flag(image):
    names = image.names()
    image.set_flags("/big", off=ITREE_FL)
    # The kernel has such segments while it builds a tree: no fault, above all not for e2scrub, which wants fixes only.
    for argv, named in ((["-fn"], True), (["-fy", "-E", "fixes_only"], False)):
        code, out = image.fsck(*argv)
        assert code == 0, out
        assert ("unused itree blocks" in out) == named, out
        assert image.has_segment()
    code, out = image.fsck("-fp")
    assert code == 1, out
    image.clean()
    assert not image.has_segment() and not image.has_tree()
    assert image.names() == names


def test_flag_on_a_file(image):
    image.set_flags("/file", on=ITREE_FL)
    check_found(image, "itree flag set but is not a directory")
    code, out = image.fsck("-fp")
    assert code == 1, out
    image.clean()
    assert not image.inode("/file")[1] & ITREE_FL
    image.exact()


@pytest.mark.parametrize("kind", ["p", "c 1 3", "b 7 0"])
def test_flag_on_a_device(one, kind):
    one.debugfs(f"mknod special {kind}", write=True)
    one.set_flags("/special", on=ITREE_FL)
    check_found(one, "itree flag set but is not a directory")
    one.fsck("-fy", ok=(1,))
    one.clean()


def test_flag_without_feature(image):
    names = image.names()
    image.debugfs("feature -itree", write=True)
    check_found(image, "without itree support")
    code, out = image.fsck("-fp")
    assert code == 1, out
    image.clean()
    assert not image.has_segment() and not image.has_tree()
    assert image.names() == names


def test_flag_without_htree(image):
    names = image.names()
    image.set_flags("/big", off=INDEX_FL)
    # The checksum of the htree's root is not where a plain directory has it, so that is told of too.
    code, out = image.fsck("-fn")
    assert code & 4 and "no htree in extents" in out, out
    code, out = image.fsck("-fy")
    assert code == 1, out
    image.clean()
    assert image.names() == names
    assert image.has_segment() == image.has_tree()


def test_flag_on_a_small_directory(one):
    one.set_flags("/small", on=ITREE_FL)
    check_found(one, "no htree in extents")
    one.fsck("-fp", ok=(1,))
    one.clean()


def test_htree_lost_in_pass_2(image):
    """The tree goes with a broken htree and comes back with the new one."""
    names = image.names()
    bs = image.block_size()
    out = image.debugfs("bmap /big 0")
    # First byte of dx_root_info.reserved_zero.
    with image.path.open("r+b") as f:
        f.seek(int(out) * bs + 24)
        f.write(b"\x01")
    code, out = image.fsck("-fy")
    assert code == 1, out
    image.clean()
    assert image.names() == names
    image.exact()


# --- repairs that change the directory itself ---


def test_entry_cleared(image):
    """The file behind an entry is gone: entry and key go."""
    names = image.names()
    victim, ino = names[FILES // 2]
    image.change(f"clri <{ino}>")
    code, out = image.fsck("-fn")
    assert code == 4, out
    code, out = image.fsck("-fy")
    assert code == 1 and "does not match" not in out, out
    image.clean()
    assert image.names() == [n for n in names if n[0] != victim]
    image.exact()


def test_directory_block_lost(image):
    """A leaf of the htree is overwritten: what it held goes to lost+found."""
    names = image.names()
    bs = image.block_size()
    phys = int(image.debugfs("bmap /big 5"))
    with image.path.open("r+b") as f:
        f.seek(phys * bs)
        f.write(b"\xff" * bs)
    code, out = image.fsck("-fy")
    assert code in (0, 1), out
    image.clean()
    if image.has_tree():
        image.exact()
    inodes = {ino for _, ino in image.names()} | {ino for _, ino in image.names("/lost+found")}
    assert inodes == {ino for _, ino in names}


def test_lost_and_found_grows(one):
    """Files are connected to a lost+found that has a tree itself."""
    one.change(*["expand_dir /lost+found"] * 42)
    one.change(*(f"ln /file /lost+found/{'x' * 60}-{i:05}" for i in range(700)), "sif /file links_count 701")
    one.fsck("-fyD", ok=(0, 1))
    one.clean()
    assert one.has_tree("/lost+found")
    lost = [name for name, _ in one.names()[:600]]
    one.change(*(f"unlink /big/{name}" for name in lost))
    code, out = one.fsck("-fy")
    assert code == 1, out
    one.clean()
    assert len(one.names("/lost+found")) == 1300
    one.exact("/lost+found")


def leaf_block(image):
    return int(re.search(r"\(\+2\), physical (\d+)", image.debugfs("itree_dump -n /big"))[1])


def test_block_claimed_twice(image):
    """A file claims a leaf of the tree: it may have it, the tree is made anew."""
    names = image.names()
    had_tree = image.has_tree()
    image.debugfs(f"bmap /file 0 {leaf_block(image)}", write=True)
    code, out = image.fsck("-fn")
    assert code == 4, out
    code, out = image.fsck("-fy")
    assert code == 1 and "has multiply-claimed blocks.  Recreate? yes" in out, out
    assert "Clone" not in out, out
    image.clean()
    assert image.names() == names
    assert image.has_tree() == had_tree
    if had_tree:
        image.exact()


@pytest.mark.parametrize("what", ["file", "metadata"])
def test_block_claimed_twice_no_space(tmp_path, source, what):
    """With no block left to clone to, neither the directory nor the file may go."""
    image = make(tmp_path / "fs.img", source, "itree,^has_journal", 1024, "8M", ["-m", "0"])
    image.fsck("-fyD", ok=(0, 1))
    image.exact()
    leaf = leaf_block(image)
    commands = ["write /dev/null zz", f"bmap /zz 0 {leaf}", "sif /zz size 1024", "sif /zz blocks 2"]
    if what == "metadata":
        table = int(re.search(r"Inode table at (\d+)", run("dumpe2fs", image.path)[1])[1])
        commands.insert(0, f"bmap /big {SEG + 2} {table + 1}")
    free = int(re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1])
    # The extents of what fills it take a few blocks more: try until all are gone.
    commands += ["write /dev/null fill"] + [f"fallocate /fill 0 {free - n}" for n in range(4, 0, -1)]
    image.debugfs(*commands, write=True)
    assert re.search(r"Free blocks: +0\n", run("dumpe2fs", "-h", image.path)[1])
    names, files = image.names(), image.names("/")
    code, out = image.fsck("-fy")
    assert code == 1 and "Failed to rebuild itree" in out, out
    assert "Delete" not in out, out
    image.clean()
    assert image.names() == names and image.names("/") == files
    image.change("rm /fill")
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.exact()


def test_wrong_block_count(image):
    image.change("sif /big blocks 2")
    check_found(image, "i_blocks is 2")
    image.fsck("-fp", ok=(1,))
    image.clean()
    image.exact()


# --- -D ---


def test_optimise_packs_and_is_repeatable(image):
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.exact()
    first = image.keys()
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    assert image.keys() == first


def test_optimise_after_deletions(image):
    """A directory that has become small needs no tree."""
    names = image.names()
    image.debugfs(*(f"rm /big/{name}" for name, _ in names[5:]), write=True)
    image.exact()
    image.clean()
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    assert not image.has_tree() and not image.has_segment()
    assert image.names() == names[:5]


def test_no_trees_without_the_feature(tmp_path, source):
    image = make(tmp_path / "fs.img", source, "^fast_commit")
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    assert not image.has_tree() and not image.has_segment()


def test_no_space_for_a_tree(tmp_path, source):
    """A tree that does not fit is told of and missed; the directory is not."""
    image = make(tmp_path / "fs.img", source, "itree,^has_journal", 1024, "8M", ["-m", "0"])
    image.fsck("-fyD", ok=(0, 1))
    flag_without_segment(image)
    free = int(re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1])
    image.debugfs("write /dev/null fill", f"fallocate /fill 0 {free - 12}", write=True)
    names = image.names()
    code, out = image.fsck("-fy")
    assert code == 1 and "Failed to rebuild itree" in out, out
    image.clean()
    assert image.names() == names
    assert not image.has_tree() and not image.has_segment()
    image.change("rm /fill")
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.exact()


def test_scattered_tree(tmp_path, source):
    """Free space in single blocks: one extent a node, extent blocks that reach past i_size."""
    image = make(tmp_path / "fs.img", source, "itree,^has_journal", 1024, "8M", ["-m", "0"])
    image.fsck("-fyD", ok=(0, 1))
    image.change("itree_drop /big")
    free = int(re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1])
    image.debugfs("write /dev/null fill", f"fallocate /fill 0 {free - 30}", write=True)
    image.debugfs(*(f"punch /fill {n} {n}" for n in range(100, 900, 2)), write=True)
    # The rest of the free space goes to a second file.
    code, out = image.fsck("-fn")
    assert code == 0, out
    image.debugfs("write /dev/null rest", "fallocate /rest 0 29", write=True)
    image.change("itree_build /big")
    assert image.inode("/big")[2].count("2147483") > 8, image.inode("/big")[2]
    image.clean()
    image.exact()
    bad_magic(image)
    image.fsck("-fy", ok=(1,))
    image.clean()
    image.exact()


def quota_image(tmp_path):
    """One file of each kind whose content is in its inode, some with a block of extended attributes."""
    image = make(tmp_path / "fs.img", None, "quota,project,inline_data", extra=["-I", "256"])
    (tmp_path / "small").write_text("inline")
    (tmp_path / "large").write_text("x" * 5000)
    attribute = tmp_path / "attribute"
    attribute.write_text("v" * 700)
    image.debugfs(
        f"write {tmp_path}/small small", f"write {tmp_path}/large large", "symlink fast target",
        f"symlink inline {'t' * 80}", "mknod fifo p",
        f"ea_set -f {attribute} /inline user.a", f"ea_set -f {attribute} /fast user.a",
        f"ea_set -f {attribute} /large user.a", write=True)  # fmt: skip
    image.fsck("-fy", ok=(0, 1))
    return image


def test_symlinks_in_inline_data_are_counted(tmp_path):
    """Their extended attributes keep their block, too."""
    image = make(tmp_path / "fs.img", None, "quota,project,inline_data", extra=["-I", "256"])
    attribute = tmp_path / "attribute"
    attribute.write_text("v" * 700)
    image.debugfs(f"symlink inline {'t' * 80}", f"ea_set -f {attribute} /inline user.a", write=True)
    block = re.search(r"File ACL: (\d+)", image.inode("/inline")[2])[1]
    assert block != "0"
    image.fsck("-fy", ok=(1,))
    image.clean()
    assert "marked in use" in image.debugfs(f"testb {block}")
    assert re.search(r"^ *0 .* 3 +0 +0$", image.debugfs("list_quota user"), re.M)


@pytest.mark.parametrize("name", ["small", "large", "fast", "inline", "fifo"])
def test_quota_forgets_deleted_inodes(tmp_path, name):
    image = quota_image(tmp_path)
    image.clean()
    image.change(f"sif /{name} mode 0160644")
    image.fsck("-fy", ok=(1,))
    image.clean()
    assert name not in dict(image.names("/"))
