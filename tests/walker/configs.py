# SPDX-License-Identifier: GPL-2.0-only
"""The volumes that walks begin with: made once by the tools under test, the same each time, and kept."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[1]
ROOT = pathlib.Path(os.environ.get("E2FSPROGS_ROOT") or REPO / "build" / "e2fsprogs" / "root")
KEEP = REPO / "build" / "walker"
UUID = "69747265-6500-4000-8000-77616c6b6572"
CASEFOLD_FL = 0x40000000


@dataclasses.dataclass(frozen=True)
class Config:
    name: str
    features: str
    block_size: int = 1024
    size: int = 6  # MiB
    extra: tuple = ()
    names: int = 1000  # of 240 bytes in /big
    late: bool = False  # the feature is set by the walk
    casefold: bool = False

    @property
    def quota(self):
        """What changes a volume without counting: e2fsck corrects the counts."""
        return "quota" in self.features

    @property
    def for_fuse2fs(self):
        """Whether fuse2fs mounts such a volume; since 1.47.3 it refuses what it would not keep right."""
        return not {"quota", "verity", "encrypt", "casefold"} & set(self.features.split(","))


BARE = "^has_journal,^resize_inode,^orphan_file"
CONFIGS = {
    c.name: c
    for c in (
        Config("1k", f"itree,{BARE}"),
        Config("1k-nocsum", f"itree,{BARE},^metadata_csum"),
        Config("1k-late", BARE, late=True),
        Config("1k-32bit", f"itree,{BARE},^64bit", extra=("-I", "128")),
        Config("1k-inline", f"itree,{BARE},inline_data"),
        Config("1k-quota", f"itree,{BARE},quota,project", size=8),
        Config("1k-large", f"itree,{BARE},large_dir,metadata_csum_seed,ea_inode"),
        Config("1k-casefold", f"itree,{BARE},casefold", extra=("-E", "encoding=utf8"), casefold=True),
        Config("1k-encrypt", f"itree,{BARE},encrypt,stable_inodes,verity"),
        Config("1k-journal", "itree", size=10, extra=("-J", "size=1")),
        Config("1k-flat", f"itree,{BARE},^flex_bg,^metadata_csum,uninit_bg", extra=("-g", "2048")),
        Config("1k-bigalloc", f"itree,{BARE},bigalloc", size=12, extra=("-C", "2048")),
        Config("2k", f"itree,{BARE}", 2048, 12, names=4400),
        Config("2k-nocsum", f"itree,{BARE},^metadata_csum,inline_data", 2048, 8, names=800),
        Config("4k", f"itree,{BARE}", 4096, 12, names=800),
        Config("4k-quota", f"itree,{BARE},quota,^metadata_csum", 4096, 16, names=800),
        Config("4k-bigalloc", f"itree,{BARE},bigalloc", 4096, 32, extra=("-C", "16384"), names=800),
        Config("4k-casefold", f"itree,{BARE},casefold,inline_data", 4096, 12, names=800, casefold=True),
    )
}


def of_seed(seed):
    return list(CONFIGS)[seed % len(CONFIGS)]


class WalkError(Exception):
    """The walker itself cannot go on."""


def tool(name):
    for folder in ("sbin", "bin"):
        if (path := ROOT / folder / name).exists():
            return str(path)
    raise WalkError(f"{ROOT} has no {name}: run `make e2fsprogs`, or set E2FSPROGS_ROOT")


@functools.cache
def environ():
    return {**os.environ, "LC_ALL": "C", "DEBUGFS_PAGER": "cat", "E2FSPROGS_FAKE_TIME": "1700000000",
            "MKE2FS_CONFIG": str(ROOT / "etc" / "mke2fs.conf")}  # fmt: skip


def call(argv, stdin="", limit=60):
    """(exit code or None if it did not end, what it said)"""
    try:
        res = subprocess.run([str(a) for a in argv], env=environ(), input=stdin.encode(), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=limit, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as err:
        return None, (err.stdout or b"").decode(errors="replace")[-3000:]
    return res.returncode, res.stdout.decode(errors="replace")


@functools.cache
def key():
    """Of all that decides what a template holds"""
    digest = hashlib.sha256()
    for path in (__file__, HERE / "src" / "volume.c", ROOT / "lib" / "libext2fs.a"):
        digest.update(pathlib.Path(path).read_bytes())
    for name in ("mke2fs", "e2fsck"):
        digest.update(pathlib.Path(tool(name)).read_bytes())
    return digest.hexdigest()[:16]


def put(path, make):
    """Make a file, complete or not at all, whoever makes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as tmp:
        new = pathlib.Path(tmp) / path.name
        make(new)
        new.rename(path)
    return path


def helper():
    """The program that changes volumes through libext2fs (src/volume.c)"""
    path = KEEP / key() / "volume"

    def build(new):
        argv = ["gcc", "-std=gnu11", "-O2", "-Wall", f"-I{REPO}/e2fsprogs/overlay/lib", f"-I{ROOT}/include", "-o", new,
                HERE / "src" / "volume.c", ROOT / "lib" / "libext2fs.a", ROOT / "lib" / "libcom_err.a",
                "-lpthread"]  # fmt: skip
        code, out = call(argv)
        if code:
            raise WalkError(f"volume.c does not compile:\n{out}")

    return path if path.exists() else put(path, build)


def fill(config, path):
    with open(path, "wb") as handle:
        os.truncate(handle.fileno(), config.size << 20)
    extra = [e if not e.startswith("encoding") else f"{e},hash_seed={UUID}" for e in config.extra]
    if not any("hash_seed" in e for e in extra):
        extra += ["-E", f"hash_seed={UUID}"]
    argv = [tool("mke2fs"), "-q", "-F", "-t", "ext4", "-O", config.features, "-b", config.block_size, "-N", 512,
            "-m", 0, "-U", UUID, *extra, path]  # fmt: skip
    code, out = call(argv)
    if code:
        raise WalkError(f"mke2fs for {config.name}: exit code {code}\n{out}")
    lines = ["mkdir /big", "mkdir /side", "mkdir /small"]
    if config.casefold:
        lines += [f"flags /{d} {CASEFOLD_FL:#x}" for d in ("big", "side")]
    lines += ["file /common 60", "mkdir /big/inner", "eat 2 3000"]
    # Blocks that lie apart from the first: nothing else is free.
    lines += [f"names /big first 0 {config.names} 240 /common 0", "names /side other 0 200 120 /common 0"]
    for n in range(24):
        where = ("big", "side", "small")[n % 3]
        lines += [
            f"file /{where}/file{n:03} {40 + 60 * (n % 5)}",
            f"symlink /{where}/symlink{n:03} {'t' * (20 + n * 9)}",
        ]
    code, out = call([helper(), "run", path], "".join(line + "\n" for line in lines))
    if code or "error" in out:
        raise WalkError(f"filling {config.name}: exit code {code}\n{out}")
    # Indexed, with trees
    code, out = call([tool("e2fsck"), "-fyD", path])
    if code not in (0, 1):
        raise WalkError(f"e2fsck -fyD of {config.name}: exit code {code}\n{out}")


def template(name):
    """Path of the volume that walks of this configuration begin with"""
    for old in KEEP.glob("*/"):
        # Those of today may be in use: with other tools, or by who began before the tools were built anew.
        if old.name != key() and len(old.name) == 16 and old.stat().st_mtime < time.time() - 86400:
            shutil.rmtree(old, ignore_errors=True)
    path = KEEP / key() / f"{name}.img"
    return path if path.exists() else put(path, lambda new: fill(CONFIGS[name], new))
