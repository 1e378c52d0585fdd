# SPDX-License-Identifier: GPL-2.0-only
"""Link counts at their limit: more subdirectories, or more hard links, than i_links_count can hold."""

import errno
import os
import pathlib
import re
import tempfile

import pytest
from conftest import INDEX_FL, ITREE_FL, ROOT, Image, make, run
from test_fuse import mounted

LINK_MAX = 65000


def links(image, path):
    return int(re.search(r"Links: (\d+)", image.inode(path)[2])[1])


def volume(tmp_path, features, count):
    """/many claims to have `count` links; /old holds a directory that can be moved."""
    image = make(tmp_path / "fs.img", features=features)
    image.change("mkdir /many", "mkdir /old", "mkdir /old/sub")
    image.debugfs("write /dev/null /file", write=True)
    image.change(f"sif /many links_count {count}")
    return image


def test_subdirectories_beyond_the_limit_make_the_count_1(tmp_path):
    image = volume(tmp_path, "dir_nlink", LINK_MAX - 1)
    for expected in (LINK_MAX, 1, 1):
        image.change(f"mkdir /many/d{len(image.names('/many'))}")
        assert links(image, "/many") == expected
    image.change("rmdir /many/d0")
    assert links(image, "/many") == 1


def test_without_dir_nlink_there_is_a_limit(tmp_path):
    image = volume(tmp_path, "^dir_nlink", LINK_MAX - 1)
    image.change("mkdir /many/last")
    before = run("dumpe2fs", image.path)[1]
    out = image.debugfs("mkdir /many/refused", write=True)
    assert os.strerror(errno.EMLINK) in out and "dir_nlink" in out
    assert [name for name, _ in image.names("/many")] == ["last"]
    assert links(image, "/many") == LINK_MAX
    assert run("dumpe2fs", image.path)[1] == before
    # Nothing else is wrong: with its count mended the volume is clean.
    image.change("sif /many links_count 3")
    image.clean()


needs_fuse = pytest.mark.skipif(not (ROOT / "bin" / "fuse2fs").exists(), reason="fuse2fs was not built")


@needs_fuse
def test_fuse2fs_moves_directories_out_of_one_with_count_1(tmp_path):
    image = volume(tmp_path, "dir_nlink", 3)
    image.change("mkdir /many/sub1", "mkdir /many/sub2", "sif /many links_count 1")
    with mounted(image, tmp_path / "mnt") as mnt:
        (mnt / "many" / "sub1").rename(mnt / "moved")
        (mnt / "many" / "sub2").rmdir()
    assert links(image, "/many") == 1


@needs_fuse
def test_fuse2fs_moves_directories_into_a_full_one(tmp_path):
    image = volume(tmp_path, "dir_nlink", LINK_MAX)
    with mounted(image, tmp_path / "mnt") as mnt:
        (mnt / "old" / "sub").rename(mnt / "many" / "sub")
    assert links(image, "/many") == 1
    assert links(image, "/old") == 2


@needs_fuse
def test_fuse2fs_refuses_what_cannot_be_counted(tmp_path):
    image = volume(tmp_path, "^dir_nlink", LINK_MAX)
    image.change(f"sif /file links_count {LINK_MAX}")
    with mounted(image, tmp_path / "mnt") as mnt:
        for change in (
            lambda: (mnt / "many" / "new").mkdir(),
            lambda: (mnt / "old" / "sub").rename(mnt / "many" / "sub"),
            lambda: os.link(mnt / "file", mnt / "another"),
        ):
            with pytest.raises(OSError) as refusal:
                change()
            assert refusal.value.errno == errno.EMLINK
        # A rename within the directory changes no count.
        (mnt / "old" / "sub").rename(mnt / "old" / "renamed")
    assert links(image, "/many") == LINK_MAX and links(image, "/old") == 3
    image.change("sif /many links_count 2", "sif /file links_count 1")
    image.clean()


# --- what mke2fs -d copies ---


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A directory of that many empty ones, which only grows."""
    top = tmp_path_factory.mktemp("many")

    def get(count):
        for i in range(len(os.listdir(top)), count):
            (top / f"d{i:06}").mkdir()
        assert len(os.listdir(top)) == count
        return top

    return get


def mke2fs_d(tmp_path, source, features):
    argv = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-O",
        features,
        "-b",
        1024,
        "-N",
        80000,
        "-d",
        source,
        tmp_path / "fs.img",
        "300M",
    ]
    return Image(tmp_path / "fs.img"), *run("mke2fs", *argv, ok=None)


# The root is the directory, and so holds lost+found as well.
@pytest.mark.parametrize("count", [64997, 64998, 65533, 65534, 70000])
def test_mke2fs_d_of_many_subdirectories(many, tmp_path, count):
    image, code, out = mke2fs_d(tmp_path, many(count), "itree,dir_nlink")
    assert code == 0, out
    image.clean()
    expected = count + 3 if count + 3 <= LINK_MAX else 1
    assert links(image, "/") == expected
    assert image.inode("/")[1] & (INDEX_FL | ITREE_FL) == INDEX_FL | ITREE_FL
    names = [name for name, _ in image.names("/")]
    assert names == [f"d{i:06}" for i in range(count)] + ["lost+found"]
    image.exact("/")


def test_mke2fs_d_without_dir_nlink(many, tmp_path):
    # The parameters of the test above have left 70,000.
    source = many(70000)
    image, code, out = mke2fs_d(tmp_path, source, "^dir_nlink")
    assert code != 0 and os.strerror(errno.EMLINK) in out
    assert f'"d{LINK_MAX - 3:06}"' in out and "dir_nlink" in out


def test_mke2fs_d_of_too_many_hard_links(tmp_path):
    """tmpfs lets a file have more than ext4 does."""
    if not pathlib.Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(prefix="itree-links-", dir="/dev/shm") as folder:
        source = pathlib.Path(folder)
        (source / "l00000").write_text("x")
        for i in range(1, LINK_MAX):
            os.link(source / "l00000", source / f"l{i:05}")
        image, code, out = mke2fs_d(tmp_path, source, "itree")
        assert code == 0, out
        image.clean()
        assert links(image, "/l00000") == LINK_MAX
        os.link(source / "l00000", source / "one-too-many")
        image, code, out = mke2fs_d(tmp_path, source, "itree")
        assert code != 0 and os.strerror(errno.EMLINK) in out and '"one-too-many"' in out
