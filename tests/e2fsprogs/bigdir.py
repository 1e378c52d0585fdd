# SPDX-License-Identifier: GPL-2.0-only
"""Large linear directories made in no time, and ext2fs_htree_build() on them (src/bigdir.c)."""

import contextlib
import functools
import os
import pathlib
import random
import re
import string
import subprocess
import tempfile

import pytest
from conftest import INDEX_FL, REPO, ROOT, run

HERE = pathlib.Path(__file__).resolve().parent
CHARS = string.ascii_letters + string.digits + "-_.,+= "


@functools.cache
def helper():
    """The program, compiled for this run against the library under test."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="itree-bigdir-")) / "bigdir"
    argv = ["gcc", "-std=gnu11", "-O2", "-Wall", f"-I{REPO}/e2fsprogs/overlay/lib", f"-I{ROOT}/include",
            "-o", out, HERE / "src" / "bigdir.c", ROOT / "lib" / "libext2fs.a", ROOT / "lib" / "libcom_err.a",
            "-lpthread"]  # fmt: skip
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert res.returncode == 0, f"bigdir.c does not compile:\n{res.stderr}"
    return out


def bigdir(command, image, *args, stdin="", ok=(0,)):
    __tracebackhide__ = True
    argv = [str(helper()), command, str(image.path), *map(str, args)]
    res = subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert res.returncode in ok, f"{' '.join(argv)}: exit code {res.returncode}\n{res.stdout}"
    return res.stdout.strip()


def some_names(count, shortest=1, longest=255, seed=1):
    """Different names of all lengths."""
    rnd = random.Random(seed)
    names = set()
    while len(names) < count:
        name = "".join(rnd.choices(CHARS, k=rnd.randint(shortest, longest)))
        if name not in (".", ".."):
            names.add(name)
    # The order of a set differs from run to run.
    return sorted(sorted(names), key=lambda name: rnd.random())


def fill(image, names, links=1, folder="big"):
    """A linear directory of these names, `links` of them one file; returns its blocks."""
    out = bigdir("fill", image, folder, links, stdin="".join(name + "\n" for name in names))
    return int(re.fullmatch(r"(\d+) blocks", out)[1])


def htree(image, folder="/big"):
    """Index it."""
    assert bigdir("htree", image, folder) == "done"
    assert image.inode(folder)[1] & INDEX_FL


def refused(image, reason, folder="/big"):
    """Index it in vain: an error, and nothing has changed."""
    before, flags, free = content(image, folder), image.inode(folder)[1], free_blocks(image)
    out = bigdir("htree", image, folder, ok=(1,))
    assert reason in out
    assert content(image, folder) == before
    assert image.inode(folder)[1] == flags
    assert free_blocks(image) == free


def content(image, folder):
    """What a directory's blocks hold"""
    with tempfile.NamedTemporaryFile() as out:
        image.debugfs(f"dump {folder} {out.name}")
        data = pathlib.Path(out.name).read_bytes()
    assert data or folder != "/big", "debugfs dumped nothing"
    return data


def free_blocks(image):
    return int(re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1])


def size_of(image, folder="/big"):
    return int(re.search(r"Size: (\d+)", image.inode(folder)[2])[1])


def leaf_hashes(image, folder="/big"):
    """The leaves in their order: (hash in the index, hashes of the names)"""
    out = image.debugfs(f"htree_dump {folder}")
    leaves, number, key, node = [], 0, 0, 0
    for line in out.splitlines():
        if m := re.match(r"Entry #(\d+): Hash (0x[0-9a-f]{8}), block", line):
            number, key = int(m[1]), int(m[2], 16)
        elif line.startswith("Number of entries (count)") and number:
            node = key  # the first entry of a node goes by what its parent says
        elif line.startswith("Reading directory block "):
            leaves.append((key if number else node, []))
        for found in re.findall(r" (0x[0-9a-f]{8})-[0-9a-f]{8} \(", line):
            leaves[-1][1].append(int(found, 16))
    assert leaves, out
    return leaves


@contextlib.contextmanager
def mounted(image, where, options="ro,noload"):
    """Mounted by this machine's kernel, which need not know the itree; skips where that cannot be."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    where.mkdir()
    argv = ["mount", "-o", f"loop,{options}", "-t", "ext4", image.path, where]
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    if res.returncode:
        pytest.skip(f"this machine cannot mount the image: {res.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def found_by_name(image, names, where, folder="big"):
    with mounted(image, where) as top:
        missing = [name for name in names if not os.path.lexists(top / folder / name)]
        assert not missing, f"{len(missing)} of {len(names)} names are not found, the first is {missing[0]!r}"
        assert not os.path.lexists(top / folder / "no such name")
