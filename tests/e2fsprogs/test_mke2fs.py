# SPDX-License-Identifier: GPL-2.0-only
"""mke2fs -d with the itree feature, the usage types, and what mke2fs refuses."""

import os
import pathlib
import re
import subprocess

import pytest
from bigdir import found_by_name, free_blocks, size_of, some_names
from conftest import INDEX_FL, ITREE_FL, Image, make, run, tool

BOTH = INDEX_FL | ITREE_FL


def populate(top, names, links):
    """A directory of these names; `links` of them are one file."""
    top.mkdir(parents=True)
    first = None
    for i, name in enumerate(names):
        if i % links:
            os.link(first, top / name)
        else:
            first = top / name
            first.write_text(f"{i}\n")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Large directories at two depths, small ones beside them."""
    top = tmp_path_factory.mktemp("tree")
    populate(top / "big", some_names(2400, seed=2), 3)
    populate(top / "some where" / "below", some_names(2400, 20, 120, seed=3), 8)
    populate(top / "small", some_names(20, seed=4), 1)
    (top / "empty").mkdir()
    (top / "symlink").symlink_to("big")
    return top


def source_names(folder):
    """Names, and which of them are the same file: as Image.names(), with the inode numbers of the source"""
    return sorted((entry.name, entry.inode()) for entry in os.scandir(folder))


def same_names(image, folder, source):
    """The names are those of the source, and so are the hard links among them."""
    ours, theirs = image.names(folder), source_names(source)
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    pairs = {(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def flags(image, folder):
    return image.inode(folder)[1] & BOTH


def indexed(image, tree):
    image.clean()
    for folder in ("big", "some where/below"):
        assert flags(image, f'"/{folder}"') == BOTH
        image.exact(f'"/{folder}"')
        same_names(image, f'"/{folder}"', tree / folder)
    for folder in ("/", "/small", "/empty", "/lost+found"):
        assert not flags(image, folder)


@pytest.mark.parametrize("large_dir", ["^large_dir", "large_dir"])
@pytest.mark.parametrize("csum", ["metadata_csum", "^metadata_csum"])
@pytest.mark.parametrize("block_size", [1024, 2048, 4096])
def test_large_directories_are_indexed(tree, tmp_path, block_size, csum, large_dir):
    image = make(tmp_path / "fs.img", tree, f"itree,{csum},{large_dir}", block_size, "64M")
    indexed(image, tree)
    out = tmp_path / "out"
    out.mkdir()
    image.debugfs(f"rdump /big {out}")
    assert all(
        (out / "big" / name).read_text() == (tree / "big" / name).read_text() for name in os.listdir(tree / "big")
    )


def test_blocks_of_64k(tmp_path):
    top = tmp_path / "source"
    populate(top / "big", some_names(9000), 30)
    image = make(tmp_path / "fs.img", top, "itree", 65536, "256M")
    assert size_of(image) >= 16 * 65536
    assert flags(image, "/big") == BOTH
    image.exact()
    image.clean()
    same_names(image, "/big", top / "big")


def test_thirty_thousand_names(tmp_path):
    top = tmp_path / "source"
    names = some_names(30000, longest=60)
    populate(top / "big", names, 20)
    image = make(tmp_path / "fs.img", top, "itree", 4096, "128M")
    assert flags(image, "/big") == BOTH
    image.exact()
    image.clean()
    same_names(image, "/big", top / "big")
    found_by_name(image, names, tmp_path / "mnt")


@pytest.mark.parametrize("features", ["inline_data", "^filetype", "casefold", "encrypt"])
def test_other_features(tree, tmp_path, features):
    indexed(make(tmp_path / "fs.img", tree, f"itree,{features}", 1024, "64M"), tree)


def bytes_read(argv):
    """What a program reads until it ends, from the cache or not"""
    proc = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, proc.pid, os.WEXITED | os.WNOWAIT)
    text = pathlib.Path(f"/proc/{proc.pid}/io").read_text()
    assert proc.wait() == 0
    return int(re.search(r"^rchar: (\d+)$", text, re.M)[1])


@pytest.mark.parametrize("kind", ["directories", "files", "symlinks", "fifos", "links"])
def test_work_grows_with_the_names_not_their_square(tmp_path, kind):
    top = tmp_path / "source" / "big"
    top.mkdir(parents=True)
    counts, first = [], None
    for step in range(2):
        for i in range(4000 * step, 4000 * (step + 1)):
            path = top / f"{'n' * (i % 90)}-{i:06}"
            if kind == "directories":
                path.mkdir()
            elif kind == "files":
                path.write_bytes(b"")
            elif kind == "symlinks":
                path.symlink_to("nowhere")
            elif kind == "fifos":
                os.mkfifo(path)
            elif i % 100:
                os.link(first, path)
            else:
                first = path
                path.write_bytes(b"x")
        image = tmp_path / f"fs{step}.img"
        argv = [tool("mke2fs"), "-q", "-F", "-t", "ext4", "-b", 1024, "-N", 9000, "-d", top.parent, image, "64M"]
        counts.append(bytes_read(argv))
        image = Image(image)
        image.clean()
        same_names(image, "/big", top)
    assert counts[1] < 3 * counts[0], counts


def test_names_that_are_there_already(tmp_path):
    """lost+found is; as a file it is refused."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "lost+found").write_text("x")
    argv = ["-q", "-F", "-t", "ext4", "-d", tmp_path / "source", tmp_path / "fs.img", "16M"]
    code, out = run("mke2fs", *argv, ok=None)
    assert code != 0 and "already exists" in out


def test_quota_counts_the_trees(tree, tmp_path):
    image = make(tmp_path / "fs.img", tree, "quota,itree", 1024, "64M")
    indexed(image, tree)


def test_without_the_feature_they_stay_linear(tree, tmp_path):
    code, out = run("mke2fs", "-F", "-t", "ext4", "-b", 1024, "-N", 6000, "-d", tree, tmp_path / "fs.img", "64M")
    image = Image(tmp_path / "fs.img")
    assert code == 0 and "ndex" not in out
    assert not flags(image, "/big") and not flags(image, '"/some where/below"')
    image.clean()
    same_names(image, "/big", tree / "big")


def test_says_what_it_does_unless_quiet(tree, tmp_path):
    argv = ["-F", "-t", "ext4", "-O", "itree", "-b", 1024, "-N", 6000, "-d", tree, tmp_path / "fs.img", "64M"]
    assert re.search("Indexing large directories: .*done\n", run("mke2fs", *argv)[1])
    assert run("mke2fs", "-q", *argv)[1] == ""


def test_nothing_to_index_nothing_to_say(tree, tmp_path):
    argv = ["-F", "-t", "ext4", "-O", "itree", "-b", 4096, "-d", tree / "small", tmp_path / "fs.img", "64M"]
    assert "ndexing" not in run("mke2fs", *argv)[1]


def test_same_source_same_image(tree, tmp_path):
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    images = [
        make(tmp_path / name, tree, "itree", 1024, "64M", ["-U", uuid, "-E", f"hash_seed={uuid}"]).path.read_bytes()
        for name in ("a.img", "b.img")
    ]
    assert images[0] == images[1]


def test_tarball(tree, tmp_path):
    """Hard links in tarballs are found by mke2fs on its own."""
    tar = tmp_path / "tree.tar"
    subprocess.run(["tar", "-C", tree, "-cf", tar, "."], check=True)
    argv = ["-q", "-F", "-t", "ext4", "-O", "itree", "-b", 1024, "-N", 6000, "-d", tar, tmp_path / "fs.img", "64M"]
    code, out = run("mke2fs", *argv, ok=None)
    if re.search("libarchive", out):
        pytest.skip(f"mke2fs cannot read tarballs here: {out.strip()}")
    assert code == 0, out
    indexed(Image(tmp_path / "fs.img"), tree)


def test_lost_and_found_keeps_its_blocks(tmp_path):
    """However many: e2fsck uses the empty ones when the volume is full."""
    populate(tmp_path / "source" / "lost+found", some_names(600, 20, 60), 30)
    linear = size_of(make(tmp_path / "fs.img", tmp_path / "source", "extent", 1024, "64M"), "/lost+found")
    image = make(tmp_path / "fs.img", tmp_path / "source", "itree", 1024, "64M")
    assert size_of(image, "/lost+found") == linear >= 16 * 1024
    assert not flags(image, "/lost+found")
    image.clean()


# --- no room: a warning, not a failure ---


class Tight:
    """A source whose image can be made to have as many blocks free as wanted before it is indexed."""

    def __init__(self, folder):
        self.folder = folder
        self.source = folder / "source"
        populate(self.source / "big", some_names(2400, seed=5), 3)
        (self.source / "ballast").write_bytes(b"")
        image = self.make("extent")[0]
        size, self.free = size_of(image), free_blocks(image)
        image = self.make("itree")[0]
        self.grows = (size_of(image) - size) // 1024
        self.tree = self.free - free_blocks(image) - self.grows
        assert self.grows > 20 and self.tree > 12

    def make(self, features):
        path = self.folder / "fs.img"
        argv = ["-q", "-F", "-t", "ext4", "-O", features, "-m", 0, "-b", 1024, "-N", 1500]
        code, out = run("mke2fs", *argv, "-d", self.source, path, "16M")
        assert code == 0
        return Image(path), out

    def leave(self, blocks):
        (self.source / "ballast").write_bytes(b"x" * 1024 * (self.free - blocks))
        assert free_blocks(self.make("extent")[0]) == blocks
        image, out = self.make("itree")
        image.clean()
        same_names(image, "/big", self.source / "big")
        return image, out


@pytest.fixture(scope="module")
def tight(tmp_path_factory):
    return Tight(tmp_path_factory.mktemp("tight"))


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_no_room_for_the_htree(tight, share):
    image, out = tight.leave(int(share * tight.grows))
    assert '"/big"' in out and "gets no hash index" in out and "Could not allocate block" in out
    assert f'"e2fsck -fD {image.path}"' in out
    assert not flags(image, "/big")


def test_no_room_for_the_tree(tight):
    # Room for the htree and its map, as the library counts it
    image, out = tight.leave(tight.grows + tight.grows // 80 + 8)
    assert '"/big"' in out and "gets no itree" in out and "Could not allocate block" in out
    assert flags(image, "/big") == INDEX_FL
    assert not image.has_segment()


def test_room_for_both(tight):
    image, out = tight.leave(tight.grows + tight.tree + 40)
    assert out == ""
    assert flags(image, "/big") == BOTH
    image.exact()


def test_the_advice_works(tight):
    """Room comes back, e2fsck -fD indexes."""
    image, out = tight.leave(1)
    assert "e2fsck -fD" in out
    image.debugfs("rm /ballast", write=True)
    image.fsck("-fyD", ok=(0, 1))
    assert flags(image, "/big") == BOTH
    image.exact()
    image.clean()


# --- usage types ---

EXT4 = {"has_journal", "extent", "64bit", "flex_bg", "metadata_csum", "dir_nlink", "dir_index", "filetype"}


def header(image):
    return dict(re.findall(r"^([A-Z][^:\n]*): +(.*)$", run("dumpe2fs", "-h", image.path)[1], re.M))


@pytest.mark.parametrize("fs_type", [[], ["-t", "ext4"]], ids=["", "ext4"])
@pytest.mark.parametrize("usage, ratio", [("backup", 8192), ("mail", 4096)])
def test_usage_types(tmp_path, usage, ratio, fs_type):
    path = tmp_path / "fs.img"
    assert run("mke2fs", "-q", "-F", *fs_type, "-T", usage, path, "256M")[1] == ""
    image = Image(path)
    image.clean()
    head = header(image)
    features = set(head["Filesystem features"].split())
    assert features >= EXT4 | {"itree"}
    assert ("large_dir" in features) == (usage == "backup")
    assert head["Block size"] == "4096" and head["Inode size"] == "256"
    assert abs((256 << 20) / int(head["Inode count"]) / ratio - 1) < 0.02


def test_usage_type_indexes_what_d_fills(tree, tmp_path):
    run("mke2fs", "-q", "-F", "-T", "backup", "-d", tree, tmp_path / "fs.img", "64M")
    indexed(Image(tmp_path / "fs.img"), tree)


def test_usage_type_yields_to_the_command_line(tmp_path):
    run("mke2fs", "-q", "-F", "-T", "mail", "-O", "^itree", "-i", 65536, tmp_path / "fs.img", "64M")
    head = header(Image(tmp_path / "fs.img"))
    assert "itree" not in head["Filesystem features"]
    assert int(head["Inode count"]) < 1200


# --- refusals ---


@pytest.mark.parametrize(
    "args, reason",
    [
        (["-t", "ext2", "-O", "itree"], "itree feature without extents"),
        (["-t", "ext3", "-O", "itree"], "itree feature without extents"),
        (["-t", "ext4", "-O", "itree,^extent,^64bit"], "itree feature without extents"),
        (["-t", "ext4", "-O", "itree,^dir_index"], "itree feature without dir_index"),
        (["-T", "backup", "-O", "^dir_index"], "itree feature without dir_index"),
        (["-t", "ext4", "-o", "hurd", "-O", "itree,extent,dir_index"], "HURD does not support the itree"),
        (["-t", "ext4", "-O", "itree,fast_commit"], "itree and fast_commit features are not compatible"),
        (["-T", "mail", "-O", "fast_commit"], "itree and fast_commit features are not compatible"),
        (["-t", "ext4", "-O", "itree", "-r", "0"], "-r option has been removed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(tmp_path, args, reason):
    path = tmp_path / "fs.img"
    path.write_bytes(b"precious" * (2 << 20))
    code, out = run("mke2fs", "-q", "-F", *args, path, ok=None)
    assert code != 0 and reason in out
    assert path.read_bytes() == b"precious" * (2 << 20)


def test_the_hurd_gets_no_itree_from_the_configuration(tmp_path):
    conf = tmp_path / "mke2fs.conf"
    features = "filetype,dir_index,ext_attr,itree,extent"
    conf.write_text(f"[defaults]\nbase_features = {features}\nblocksize = 4096\ninode_size = 128\n")
    argv = [tool("mke2fs"), "-q", "-F", "-o", "hurd", tmp_path / "fs.img", "16M"]
    env = {**os.environ, "MKE2FS_CONFIG": str(conf), "LC_ALL": "C"}
    res = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert res.returncode == 0, res.stderr
    assert "itree" not in header(Image(tmp_path / "fs.img"))["Filesystem features"]


@pytest.mark.parametrize("features", ["extent", "^extent,^64bit", "inline_data", "bigalloc"])
def test_quota_counts_what_d_copied(tmp_path, features):
    top = tmp_path / "source"
    (top / "folder").mkdir(parents=True)
    owners = {3000: 4000, 5000: 6000}
    for uid, gid in owners.items():
        for path in (top / f"file-{uid}", top / "folder" / f"file-{uid}"):
            path.write_text("x" * 50000)
            os.chown(path, uid, gid)
    (top / "link").symlink_to("folder")
    (top / "long link").symlink_to("x" * 200)
    image = make(tmp_path / "fs.img", top, f"quota,project,{features}", extra=["-I", "256"])
    image.clean()
    for kind, ids in (("user", owners), ("group", owners.values())):
        out = image.debugfs(f"list_quota {kind}")
        for number in ids:
            assert re.search(rf"^ *{number} +1\d{{5}} .* 2 +0 +0$", out, re.M), out


def test_quota_counts_huge_files(tmp_path):
    conf = tmp_path / "mke2fs.conf"
    conf.write_text("[fs_types]\n\thuge = {\n\t\tfeatures = extent,huge_file,quota\n\t\tmake_hugefiles = true\n"
                    "\t\thugefiles_size = 1M\n\t\tnum_hugefiles = 3\n\t\thugefiles_uid = 3000\n\t}\n")  # fmt: skip
    env = {**os.environ, "MKE2FS_CONFIG": str(conf)}
    image = Image(tmp_path / "fs.img")
    subprocess.run([tool("mke2fs"), "-q", "-F", "-T", "huge", image.path, "32M"], env=env, check=True)
    image.clean()
    assert re.search(r"^ *3000 +31\d{5} .* 3 +0 +0$", image.debugfs("list_quota user"), re.M)
