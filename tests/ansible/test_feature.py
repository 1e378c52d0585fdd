# SPDX-License-Identifier: GPL-2.0-only
"""itree_feature and itree_volume_info, with our tune2fs on real volumes of a kernel that does not know the feature."""

import hashlib
import os
import subprocess

import pytest
from conftest import fill, run

NAME = "itree_feature"


def digest(path):
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def call(collection, tools, device, ok=True, check=False, before=(), **args):
    args = {"device": str(device), "tools": str(tools), "require_kernel": False, **args}
    return collection.module(NAME, args, check=check, diff=True, ok=ok, before=before)


def has(tools, image):
    return " itree" in run(tools / "dumpe2fs", "-h", image.path)[1]


def clean(tools, image):
    run(tools / "e2fsck", "-fn", image.path)


@pytest.fixture
def volume(image, tmp_path):
    """An image with files in it, unmounted."""
    made = image()
    fill(made.mount(tmp_path / "mnt") / "large", 1200)
    made.umount()
    return made


def test_on_and_off(collection, tools, volume):
    before = digest(volume.path)
    answer = call(collection, tools, volume.path, check=True)
    assert answer["changed"] and answer["checked"]
    assert answer["diff"]["before"].endswith(": off\n") and answer["diff"]["after"].endswith(": on\n")
    assert digest(volume.path) == before, "check mode has written to the image"
    answer = call(collection, tools, volume.path)
    assert answer["changed"] and answer["checked"] and not answer["repaired"]
    assert has(tools, volume)
    clean(tools, volume)
    before = digest(volume.path)
    assert not call(collection, tools, volume.path)["changed"]
    assert digest(volume.path) == before, "what is as it should be has been written to"
    assert call(collection, tools, volume.path, state="absent")["changed"]
    assert not has(tools, volume)
    clean(tools, volume)
    assert not call(collection, tools, volume.path, state="absent")["changed"]


def refused(collection, tools, volume, *words, check=False, **args):
    """It says why, and the image is as it was."""
    before = digest(volume.path)
    device = args.pop("device", volume.path)
    msg = call(collection, tools, device, ok=False, check=check, **args)["msg"]
    for word in words:
        assert word in msg
    assert digest(volume.path) == before
    return msg


@pytest.mark.parametrize("check", (False, True))
def test_mounted(collection, tools, volume, tmp_path, check):
    point = volume.mount(tmp_path / "with space")
    loop = run("findmnt", "-n", "-o", "SOURCE", point)[1].strip()
    os.sync()
    refused(collection, tools, volume, f"mounted at {point}", f"umount '{point}'", device=loop, check=check)
    refused(collection, tools, volume, f"mounted at {point}", check=check)
    assert os.path.ismount(point)
    info = collection.module("itree_volume_info", {"volumes": [str(point), loop]})
    for found in info["volumes"]:
        assert (found["mounted_at"], found["itree"], found["errors"]) == ([str(point)], False, 0)
        assert not found["read_only"] and not found["root"] and found["free_percent"] > 50


def test_mounted_elsewhere(collection, tools, volume, tmp_path):
    """In a mount namespace that this process does not see."""
    point = tmp_path / "hidden"
    point.mkdir()
    loop = run("losetup", "--find", "--show", volume.path)[1].strip()
    script = f"mount -t ext4 {loop} {point} && echo there && exec sleep 600"
    other = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
                             stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert other.stdout.readline() == "there\n"
        assert not os.path.ismount(point)
        msg = call(collection, tools, loop, ok=False)["msg"]
        assert "in use: mounted in another namespace" in msg
        assert not has(tools, volume)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
        run("losetup", "--detach", loop)


def test_loop_device(collection, tools, volume):
    """The image of a loop device is left alone; the device itself is not in use and can be changed."""
    loop = run("losetup", "--find", "--show", volume.path)[1].strip()
    try:
        refused(collection, tools, volume, "loop device is attached", "losetup -d")
        assert call(collection, tools, loop)["changed"]
    finally:
        run("losetup", "--detach", loop)
    assert has(tools, volume)


def test_root(collection, tools, volume, tmp_path):
    """As the root file system of a chroot, in a namespace of its own."""
    point = tmp_path / "root"
    point.mkdir()
    loop = run("losetup", "--find", "--show", volume.path)[1].strip()
    lines = [f"mount -t ext4 {loop} {point}"]
    # All that the host has, so that programs find what they want.
    for name in sorted(n for n in os.listdir("/") if os.path.isdir(f"/{n}") and n != "lost+found"):
        lines += [f"mkdir {point}/{name}", f"mount --rbind /{name} {point}/{name}"]
    lines += [f'exec chroot {point} "$@"']
    before = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", "; ".join(lines), "sh")
    try:
        msg = call(collection, tools, loop, ok=False, before=before)["msg"]
    finally:
        run("losetup", "--detach", loop)
    assert "root file system is left alone" in msg
    assert not has(tools, volume)


def test_damaged(collection, tools, volume):
    """What e2fsck -p does not mend stops it before tune2fs."""
    run(tools / "debugfs", "-w", "-R", "set_inode_field <2> mode 0100644", volume.path)
    refused(collection, tools, volume, "e2fsck ended with exit code", check=True)
    msg = call(collection, tools, volume.path, ok=False)["msg"]
    assert "e2fsck ended with exit code" in msg and "Run e2fsck -f on it by hand" in msg
    assert not has(tools, volume)


def test_small_damage(collection, tools, volume):
    """What it does mend is mended and told."""
    run(tools / "debugfs", "-w", "-R", "set_super_value free_blocks_count 7", volume.path)
    answer = call(collection, tools, volume.path)
    assert answer["changed"] and answer["checked"]
    assert has(tools, volume)
    clean(tools, volume)


def test_kernel_first(collection, tools, volume):
    if os.path.exists("/sys/fs/ext4/features/itree"):
        pytest.skip("this host's kernel knows itrees")
    refused(collection, tools, volume, "does not know itrees", require_kernel=True)


def test_stock_tools(collection, tools, volume):
    if "Supported feature: itree" in run("debugfs", "-R", "supported_features itree")[1]:
        pytest.skip("this host's e2fsprogs know the feature")
    refused(collection, "/nowhere", volume, "e2fsprogs here do not know the itree feature")


def test_needs_others(collection, tools, image):
    refused(collection, tools, image("-O", "^dir_index"), "needs dir_index", "tune2fs -O dir_index")
    refused(collection, tools, image("-O", "^extent,^64bit"), "needs extent")


def test_no_ext4(collection, tools, tmp_path):
    blank = tmp_path / "blank"
    blank.write_bytes(bytes(1 << 20))
    assert "no ext4 file system" in call(collection, tools, blank, ok=False)["msg"]
    assert "No such file" in call(collection, tools, tmp_path / "none", ok=False)["msg"]
    assert "give the device" in call(collection, tools, tmp_path, ok=False)["msg"]
    msg = collection.module("itree_volume_info", {"volumes": [str(tmp_path)]}, ok=False)["msg"]
    assert "nothing is mounted there" in msg
    msg = collection.module("itree_volume_info", {"volumes": ["/proc"]}, ok=False)["msg"]
    assert "proc is mounted there, not ext4" in msg
