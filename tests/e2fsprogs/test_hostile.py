# SPDX-License-Identifier: GPL-2.0-only
"""Damaged images from tests/hostile: a sample of its seeds, and that the generator and the check do their work."""

import os
import pathlib
import re
import shutil
import struct
import subprocess

import bases
import check
import fuzzing
import hostile
import ondisk
import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
SEEDS = 300
STEP = 25
LEAF_TAIL = struct.pack("<IHBB", 0, 12, 0, 0xDE)


def build(flavour):
    if given := os.environ.get(f"E2FSPROGS_{flavour.upper()}"):
        return pathlib.Path(given)
    res = subprocess.run([REPO / "e2fsprogs" / "build", f"--{flavour}"], stdin=subprocess.DEVNULL, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
    assert res.returncode == 0, f"e2fsprogs/build --{flavour} failed:\n{res.stdout}"
    return REPO / "build" / f"e2fsprogs-{flavour}" / "root"


@pytest.fixture(scope="session")
def checker(tmp_path_factory):
    """e2fsck and debugfs under ASan and UBSan."""
    return check.Checker(tmp_path_factory.mktemp("hostile"), build("sanitize"), build("pristine"))


@pytest.mark.parametrize("first", range(0, SEEDS, STEP))
def test_repaired_in_one_run(checker, first):
    bad = []
    for seed in range(first, first + STEP):
        verdict = checker.one(seed)
        if verdict.state == "excused":
            print(f"excused: {verdict.base}, {verdict.damage}: {verdict.why}")
        elif verdict.state != "passed":
            bad.append(f"{verdict.base}, {verdict.damage}\n{verdict.why}\nagain: {verdict.command()}\n{verdict.output}")
    assert not bad, "\n\n".join(bad)


@pytest.mark.parametrize("base", bases.BASES)
def test_no_to_everything(checker, base):
    """10 seeds of each image, others than above: `e2fsck -fn` neither crashes nor changes anything."""
    count = 1000 if os.environ.get("ITREE_FULL") else 10
    verdicts = [checker.one(100000 + n, base, no=True) for n in range(count)]
    bad = [f"{v.damage}\n{v.why}\nagain: {v.command()}\n{v.output}" for v in verdicts if v.state != "passed"]
    assert not bad, "\n\n".join(bad)
    assert any("exit code 4" in v.output for v in verdicts), "e2fsck found nothing to ask"


def test_stock_e2fsck_changes_nothing(tmp_path):
    """The pristine release refuses the volume whatever it may do, as docs/format.md says."""
    image = tmp_path / "image"
    shutil.copyfile(bases.get("1k-scattered"), image)
    before = image.read_bytes()
    for answers, expected in (("-fn", 12), ("-fp", 8), ("-p", 8), ("-fy", 8), ("-y", 8)):
        code, out = check.run([build("pristine") / "sbin" / "e2fsck", answers, image])
        assert (code, "unsupported feature(s): FEATURE_R30" in out) == (expected, True), f"{answers}: {code}\n{out}"
        assert image.read_bytes() == before


@pytest.mark.parametrize("base", ["1k", "4k-nocsum"])
def test_same_seed_same_damage(base, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    made = set()
    for seed in range(20):
        for image in (one, two):
            shutil.copyfile(bases.get(base), image)
        texts = {str(hostile.corrupt(image, seed)) for image in (one, two)}
        assert len(texts) == 1
        assert one.read_bytes() == two.read_bytes() != bases.get(base).read_bytes()
        made |= texts
    assert len(made) == 20


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_every_kind_is_noticed(kind, tmp_path):
    """Each kind changes the image in a way that e2fsck objects to, at least now and then."""
    image = tmp_path / "image"
    for seed in range(20):
        shutil.copyfile(bases.get("1k-free"), image)
        damage = hostile.corrupt(image, seed, [kind])
        assert set(damage.kinds) == {kind}
        if check.run([bases.tool("e2fsck"), "-fn", image])[0] == 4:
            return
    pytest.fail(f"e2fsck -fn found nothing in 20 images with {kind}")


def test_replay_makes_the_same_image(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for seed in range(20):
        for image in (one, two):
            shutil.copyfile(bases.get("1k"), image)
        hostile.replay(two, hostile.corrupt(one, seed))
        assert one.read_bytes() == two.read_bytes()


def test_pristine_needs_two_runs_for_clusters(tmp_path):
    """Why check.CLUSTERS is excused: e2fsck as released does not repair a plain file's shifted extent at once."""
    image, pristine = tmp_path / "image", bases.tool("e2fsck", build("pristine"))
    shutil.copyfile(bases.get("1k-bigalloc").with_suffix(".twin"), image)
    bases.debugfs(image, ["write /dev/null /f", "fallocate /f 0 7", "fallocate /f 80 103", "sif /f size 106496"])
    assert check.run([pristine, "-fn", image])[0] == 0
    ino = int(bases.debugfs(image, ["stat /f"]).split("Inode: ")[1].split()[0])
    with ondisk.Disk(image) as disk:
        first, second = disk.extents(ino)[:2]
        disk.put(disk.inode_at(ino) + 40 + first.offset + 6, struct.pack("<HI", 256, 0))
        disk.put(disk.inode_at(ino) + 40 + second.offset, struct.pack("<I", second.lblk - 1))
        disk.fix_inode(ino)
    why, printed = check.repair(pristine, image)
    assert why and "not clean" in why, printed
    left = printed.split("--- e2fsck -fn")[1].splitlines()[1:]
    assert [line for line in left if not check.CLUSTERS.fullmatch(line)] == []
    assert any("violates cluster" in line for line in left)


def test_pristine_never_corrects_two_checksums(tmp_path):
    """Why check.CHECKSUMS is excused: of an inode and its extent block, if both are wrong, one stays wrong."""
    image, pristine = tmp_path / "image", bases.tool("e2fsck", build("pristine"))
    shutil.copyfile(bases.get("1k-scattered").with_suffix(".twin"), image)
    with ondisk.Disk(image) as disk:
        extents = hostile.Target(disk, trees=False).extents
        ino, last = next((i, e) for i, found in extents.items() for e in found[::-1] if e.home and not e.depth)
        disk.put(last.home * disk.bs + last.offset + 8, struct.pack("<I", 790))
        disk.put(disk.inode_at(ino) + 28, struct.pack("<I", 77))
    why, printed = check.repair(pristine, image)
    # It says that it corrects the block's, and finds it wrong again a moment later.
    assert why and check.CHECKSUMS in printed, printed[:3000]
    assert re.search(r"Error while iterating.*Extent block checksum does not match", printed), printed[:3000]


class Nothing:
    """Damage that has hit nothing."""

    hit_blocks = frozenset()
    hit_inodes = frozenset()


def faults(path, good, damage=Nothing):
    with ondisk.Disk(path, write=False) as disk:
        return check.lost(good, damage, disk)


@pytest.fixture
def good(tmp_path):
    image = tmp_path / "image"
    shutil.copyfile(bases.get("1k"), image)
    good = check.Good(image)
    assert not faults(image, good)
    return image, good


def test_lost_names_are_noticed(good):
    image, good = good
    names = {entry for blocks in good.tree.values() for entries in blocks.values() for entry in entries}
    assert len(names) > 3000, "the model of the image is nearly empty"
    name = bases.name_of(2000)
    bases.debugfs(image, [f"unlink /big/{name}"])
    assert len(bad := faults(image, good)) == 1 and name in bad[0], bad


def test_names_in_damaged_blocks_are_not_missed(good):
    """And no others are forgiven."""
    image, good = good
    big = next(ino for ino in good.trees if len(good.tree[ino]) > 50)
    block, entries = max(good.tree[big].items(), key=lambda item: len(item[1]))
    with ondisk.Disk(image) as disk:
        disk.put(block * disk.bs, bytes(disk.bs))

    class Hit(Nothing):
        hit_blocks = frozenset({block})

    assert len(faults(image, good)) == len(entries) > 5
    assert not faults(image, good, Hit)
    Hit.hit_blocks = frozenset({block + 1})
    assert faults(image, good, Hit)


def test_moved_names_are_noticed(good):
    """An inode that another name reaches is no excuse, unless the directory itself was hit."""
    image, good = good
    name = bases.name_of(2000)
    ino = int(bases.debugfs(image, [f"stat /big/{name}"]).split("Inode: ")[1].split()[0])
    bases.debugfs(image, [f"unlink /big/{name}", f"ln <{ino}> /lost+found/#{ino}"])
    assert "elsewhere" in faults(image, good)[0]
    big = next(i for i, blocks in good.tree.items() if any((name.encode(), ino) in e for e in blocks.values()))

    class Hit(Nothing):
        hit_inodes = frozenset({big})

    assert not faults(image, good, Hit)


def test_another_inode_is_noticed(good):
    image, good = good
    with ondisk.Disk(image) as disk:
        disk.put(disk.inode_at(20) + 100, struct.pack("<I", 77))
    assert "another one" in faults(image, good)[0]


def test_checksums_are_those_of_ext4(tmp_path):
    """Every checksum that damage makes right is what e2fsprogs has written there."""
    for base in ("1k-deep", "4k", "1k-scattered", "1k-bigalloc"):
        image = tmp_path / "image"
        shutil.copyfile(bases.get(base), image)
        before = image.read_bytes()
        with ondisk.Disk(image) as disk:
            target = hostile.Target(disk)
            for group in range(disk.groups):
                disk.fix_bitmap(group, 0)
                disk.fix_bitmap(group, 1)
            for ino in target.trees:
                disk.fix_inode(ino)
                for home in {e.home for e in target.extents[ino]} - {None}:
                    disk.fix_extent_block(ino, home)
                for lblk, block in target.used_nodes(ino).items():
                    disk.fix_node(ino, lblk, block)
                size = struct.unpack_from("<I", disk.inode(ino), 4)[0] // disk.bs
                for lblk, block in target.mapped(ino):
                    if lblk < size and disk.block(block)[-12:-4] == LEAF_TAIL:
                        disk.fix_leaf(ino, block)
                    elif lblk < size:
                        disk.fix_dx(ino, block, lblk == 0)
        assert image.read_bytes() == before, base


@pytest.fixture(scope="session")
def fuzzer():
    return fuzzing.build(build("fuzz"))


def test_inputs_of_the_fuzzer(fuzzer):
    """Nothing that the fuzzer has found breaks the library any more."""
    paths = fuzzing.inputs(fuzzing.CORPUS)
    assert len(paths) > 100
    code, out = fuzzing.run(fuzzer, ["-runs=1", *paths])
    assert code == 0 and out.count("Executed ") == len(paths), out[-5000:]


def test_e2fsck_on_inputs_of_the_fuzzer(fuzzer, checker):
    paths = fuzzing.inputs(fuzzing.CORPUS)[::10]
    seen = list(fuzzing.with_e2fsck(fuzzer, paths, checker))
    assert len(seen) == len(paths) > 20
    bad = [f"{path}: {verdict.why}\n{verdict.output}" for path, verdict in seen if verdict.state == "failed"]
    assert not bad, "\n\n".join(bad)


def test_the_fuzzer_notices(fuzzer, tmp_path):
    """An input whose edit breaks the root is written out as one changed image, damaged where it says."""
    path = tmp_path / "input"
    path.write_bytes(bytes([0, 0, 0, 0, 0, 0, 3, 1, 2, 3, 4]))
    folder = tmp_path / "out"
    folder.mkdir()
    assert fuzzing.run(fuzzer, ["-runs=1", "-detect_leaks=0", path], ITREE_FUZZ_WRITE=str(folder))[0] == 0
    damage = fuzzing.Damage(folder / "0")
    assert damage.base == fuzzing.IMAGES[0] and len(damage.hit_blocks) == 1 and not damage.hit_inodes
