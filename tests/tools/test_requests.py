# SPDX-License-Identifier: GPL-2.0-only
"""How many requests it takes to read small files that lie one after another on a disk."""

import os
import shutil
import tarfile

import pytest
from conftest import built, loop_mounted, make_many, requests_of, run

FILES = 2000


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs"])
def volume(request, tmp_path_factory):
    """A volume that was filled once: 2,000 files in one directory."""
    if os.geteuid() or not shutil.which(f"mkfs.{request.param}"):
        pytest.skip(f"root and mkfs.{request.param} are needed")
    base = tmp_path_factory.mktemp(request.param)
    image = base / "image"
    with open(image, "wb") as handle:
        handle.truncate(512 << 20)
    run(f"mkfs.{request.param}", "-q", image)
    with loop_mounted(image, base / "fill") as where:
        make_many(where / "many", FILES)
    return image


@pytest.mark.parametrize("merged", [True, False])
def test_tar(volume, tmp_path, merged):
    """Neighbours are read together, not by a request a file; where the kernel refuses madvise(), each by itself."""
    archive, calls = tmp_path / "a.tar", tmp_path / "calls"
    argv = [built("bin/tar"), "--sort=disk", "-cf", archive, "-C", tmp_path / "mnt", "many"]
    if not merged:
        argv = ["strace", "-f", "-o", calls, "--seccomp-bpf", "-e", "trace=madvise,fadvise64", "-e",
                "inject=madvise:error=EINVAL", *argv]  # fmt: skip
    with loop_mounted(volume, tmp_path / "mnt") as where:
        before = requests_of(where)
        run(*argv)
        count = requests_of(where) - before
        with tarfile.open(archive) as handle:
            stored = {m.name: handle.extractfile(m).read() for m in handle if m.isreg()}
        assert stored == {f"many/{p.name}": p.read_bytes() for p in (where / "many").iterdir()}
    assert len(stored) == FILES
    if merged:
        assert count < FILES / 5
    else:
        # Calls, not requests: the block layer joins requests that wait side by side.  btrfs keeps half of these files
        # in its metadata, where there is nothing to ask for.
        assert calls.read_text().count("POSIX_FADV_WILLNEED") > FILES / 3
