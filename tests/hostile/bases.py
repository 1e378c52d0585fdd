# SPDX-License-Identifier: GPL-2.0-only
"""The good images that are damaged. Made once by the tools under test, the same each time, and kept.

Each has directories with trees (/big the largest), a directory without, files of several extents, and hard
links, so that ten thousand names need few blocks. No file is empty: e2fsck deletes empty files that no name leads to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
ROOT = pathlib.Path(os.environ.get("E2FSPROGS_ROOT") or REPO / "build" / "e2fsprogs" / "root")
KEEP = REPO / "build" / "hostile"
UUID = "69747265-6500-4000-8000-686f7374696c"


@dataclasses.dataclass(frozen=True)
class Base:
    name: str
    features: str
    block_size: int = 1024
    size: str = "8M"
    extra: tuple = ()
    names: int = 2600  # in /big
    second: int = 900  # in /side
    files: int = 700
    how: str = ""  # "free": with free nodes; "scattered": the tree in many extents


PLAIN = "^has_journal,^resize_inode"
BASES = {
    b.name: b
    for b in (
        Base("1k", f"{PLAIN},itree,metadata_csum"),
        Base("1k-nocsum", f"{PLAIN},itree,^metadata_csum,^uninit_bg"),
        Base("1k-deep", f"{PLAIN},itree,metadata_csum", names=10600, size="10M"),
        Base("1k-deep-nocsum", f"{PLAIN},itree,^metadata_csum,^uninit_bg", names=10600, size="10M"),
        Base("1k-free", f"{PLAIN},itree,metadata_csum", how="free"),
        Base("1k-free-nocsum", f"{PLAIN},itree,^metadata_csum,^uninit_bg", how="free"),
        Base("1k-scattered", f"{PLAIN},itree,metadata_csum", how="scattered"),
        Base("1k-quota", "itree,metadata_csum,quota,project", size="12M"),
        Base("1k-bigalloc", f"{PLAIN},itree,metadata_csum,bigalloc", size="16M", extra=("-C", "8192")),
        Base("4k", f"{PLAIN},itree,metadata_csum", 4096, "16M", second=1700, files=400),
        Base("4k-nocsum", f"{PLAIN},itree,^metadata_csum,^uninit_bg", 4096, "16M", second=1700, files=400),
    )
}


def of_seed(seed):
    """Name of the image that a seed damages"""
    return list(BASES)[seed % len(BASES)]


class BaseError(Exception):
    """A tool did not do what it had to; the text is its own."""


def tool(name, root=None):
    path = (root or ROOT) / "sbin" / name
    if not path.exists():
        raise BaseError(f"{path} is missing: run `make e2fsprogs`, or set E2FSPROGS_ROOT")
    return path


def environ():
    return {**os.environ, "LC_ALL": "C", "DEBUGFS_PAGER": "cat", "E2FSPROGS_FAKE_TIME": "1700000000",
            "ASAN_OPTIONS": "detect_leaks=0:exitcode=86", "UBSAN_OPTIONS": "print_stacktrace=1"}  # fmt: skip


def call(ok, argv):
    res = subprocess.run([str(a) for a in argv], env=environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace", check=False)  # fmt: skip
    if res.returncode not in ok:
        raise BaseError(f"{' '.join(map(str, argv))}: exit code {res.returncode}\n{res.stdout[-3000:]}")
    return res.stdout


def debugfs(path, commands):
    with tempfile.NamedTemporaryFile("w", suffix=".cmds") as script:
        script.write("".join(line + "\n" for line in commands))
        script.flush()
        return call((0,), [tool("debugfs"), "-w", "-f", script.name, path])


def name_of(n):
    """Names of 20 to 60 characters, spread over the hash."""
    return f"{n * 0x9E3779B97F4A7C15 & 2**64 - 1:016x}.msg" + "," * (n * 7 % 41)


def fill(base, path):
    """Everything by debugfs, in an order of our own: inodes and blocks are the same on every machine."""
    with tempfile.NamedTemporaryFile("wb") as small, tempfile.NamedTemporaryFile("wb") as large:
        small.write(b"a message\n")
        small.flush()
        large.write(bytes(range(256)) * 40)
        large.flush()
        per_block = base.block_size // 72
        commands = ["mkdir /big", "mkdir /side", "mkdir /small", "mkdir /big/inner"]
        commands += ["expand_dir /big"] * (base.names // per_block) + ["expand_dir /side"] * (base.second // per_block)
        files = []
        for n in range(base.files):
            folder = ("big", "big", "side", "small")[n % 4 if n < 80 else n % 3]
            where = f"/{folder}/{name_of(n)}"
            commands += [f"write {large.name if n % 100 == 5 else small.name} {where}"]
            files.append(where)
        links = dict.fromkeys(range(base.files), 1)
        total = {"big": base.names, "side": base.second}
        n = base.files
        for folder, count in total.items():
            for _ in range(count - base.files // 2):
                # Not one after the other: neighbours in the htree are far apart in the tree.
                owner = n * 7919 % base.files
                commands.append(f"ln {files[owner]} /{folder}/{name_of(n)}")
                links[owner] += 1
                n += 1
        commands += [f"sif {files[i]} links_count {count}" for i, count in links.items() if count > 1]
        out = debugfs(path, commands)
    bad = [line for line in out.splitlines() if not line.startswith(("debugfs", "Allocated inode"))]
    if bad:
        raise BaseError(f"debugfs while filling {base.name}: {bad[:5]}")


def free_blocks(path):
    out = call((0,), [tool("dumpe2fs"), "-h", path])
    return int(next(line.split()[-1] for line in out.splitlines() if line.startswith("Free blocks:")))


def scatter(path):
    """Drop the tree of /big and build it where only single blocks are free."""
    debugfs(path, ["itree_drop /big", "write /dev/null /fill", f"fallocate /fill 0 {free_blocks(path) - 300}"])
    debugfs(path, ["write /dev/null /rest", f"fallocate /rest 0 {free_blocks(path) - 20}"])
    debugfs(path, [f"punch /fill {n} {n}" for n in range(50, 1400, 3)] + ["itree_build /big"])
    if debugfs(path, ["stat /big"]).count("(2147483") < 8:
        raise BaseError("the tree of /big is not scattered")


def links(path, folder):
    """{inode: [names]} of a directory"""
    found = {}
    for line in debugfs(path, [f"ls -p {folder}"]).splitlines():
        part = line.split("/")
        if len(part) == 8 and part[5] not in (".", ".."):
            found.setdefault(int(part[1]), []).append(part[5])
    return found


def free_nodes(path):
    """Remove names of neighbouring inodes until the library merges nodes and keeps the empty ones."""
    names, elsewhere = links(path, "/big"), links(path, "/side")
    inodes = sorted(names)
    # No file is to be lost: one that has no other name keeps one here.
    gone = [n for i in inodes[len(inodes) // 4 : len(inodes) * 3 // 4] for n in names[i][i not in elsewhere :]]
    debugfs(path, [f"unlink /big/{name}" for name in gone])
    call((0, 1), [tool("e2fsck"), "-fy", path])
    if "Free nodes: 0" in debugfs(path, ["itree_stat /big"]):
        raise BaseError("the tree of /big has no free node")


def build(base, path):
    """Make the image of a base at path."""
    with open(path, "wb") as handle:
        os.truncate(handle.fileno(), int(base.size[:-1]) << 20)
    argv = ["-q", "-F", "-t", "ext4", "-O", base.features, "-b", base.block_size, "-N", 1000, "-m", 0,
            "-U", UUID, "-E", f"hash_seed={UUID},lazy_itable_init=0", *base.extra]  # fmt: skip
    if base.block_size == 1024 and not base.extra:
        argv += ["-g", 2048]  # several groups
    call((0,), [tool("mke2fs"), *argv, path])
    fill(base, path)
    call((0, 1), [tool("e2fsck"), "-fyD", path])
    if base.how == "scattered":
        scatter(path)
    elif base.how == "free":
        free_nodes(path)
    call((0,), [tool("e2fsck"), "-fn", path])
    for folder in ("/big", "/side"):
        if "clean" not in debugfs(path, [f"itree_verify {folder}"]):
            raise BaseError(f"{base.name}: {folder} has no sound tree")


def key():
    """Of all that decides what the images hold."""
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for name in ("mke2fs", "e2fsck", "debugfs", "tune2fs"):
        digest.update(tool(name).read_bytes())
    digest.update(pathlib.Path("/etc/mke2fs.conf").read_bytes() if pathlib.Path("/etc/mke2fs.conf").exists() else b"")
    return digest.hexdigest()[:16]


def get(name):
    """Path of a good image, made if it is not there yet. Its twin without the tree is beside it (.twin)."""
    folder = KEEP / f"bases-{key()}"
    path = folder / f"{name}.img"
    if path.exists():
        return path
    for old in KEEP.glob("bases-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    # Complete or absent, whoever else makes it at the same time.
    with tempfile.TemporaryDirectory(dir=folder) as tmp:
        new = pathlib.Path(tmp) / "new.img"
        build(BASES[name], new)
        twin = pathlib.Path(tmp) / "new.twin"
        shutil.copyfile(new, twin)
        call((0,), [tool("tune2fs"), "-O", "^itree", twin])
        call((0, 1), [tool("e2fsck"), "-fy", twin])
        twin.rename(path.with_suffix(".twin"))
        new.rename(path)
    return path
