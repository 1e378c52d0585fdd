# SPDX-License-Identifier: GPL-2.0-only
"""Images with itrees in them, made and broken by the tools under test."""

import functools
import itertools
import os
import pathlib
import re
import shutil
import struct
import tempfile

import command
import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
ROOT = pathlib.Path(os.environ.get("E2FSPROGS_ROOT") or REPO / "build" / "e2fsprogs" / "root")

FILES = 2511  # the last leaf of the tree is not full
ITREE_FL = 0x08000000
INDEX_FL = 0x00001000
HEAD = struct.Struct("<IBBHHHI")  # magic, version, level, count, limit, reserved, next
INFO = struct.Struct("<QIIIB11x")  # keys, blocks, free head, free count, hash version
SEG = 0x80000000
FREE_MAGIC = 0x46525449


def tool(name):
    for folder in ("sbin", "bin", "usr/sbin", "usr/bin"):
        if (path := ROOT / folder / name).exists():
            return path
    pytest.fail(f"{name} is not in {ROOT}: run `make e2fsprogs`, or set E2FSPROGS_ROOT")


@functools.cache
def mke2fs_conf():
    """The one installed, but with a hash seed.

    mke2fs takes a random one, and with it names go to other leaves: where
    blocks are counted, a test would pass on most days.  ITREE_HASH_SEED=UUID
    runs them with another.
    """
    seed = os.environ.get("ITREE_HASH_SEED", "6b1d3c52-0f2e-4f5a-9c55-7d1e8a90b3c4")
    text = (ROOT / "etc" / "mke2fs.conf").read_text()
    handle = tempfile.NamedTemporaryFile("w", prefix="itree-", suffix=".conf")
    handle.write(re.sub(r"^(\s+)(\w+ = \{)$", rf"\1\2\n\1\1options = hash_seed={seed}", text, flags=re.M))
    handle.flush()
    return handle


def run(name, *args, **kw):
    """Run a tool of ours; returns (exit code, all it printed)."""
    __tracebackhide__ = True
    env = {"LC_ALL": "C", "DEBUGFS_PAGER": "cat", "E2FSPROGS_FAKE_TIME": "1700000000"}
    if (ROOT / "etc" / "mke2fs.conf").exists():
        env["MKE2FS_CONFIG"] = mke2fs_conf().name
    return command.run(tool(name), *args, env=env, **{"timeout": None, **kw})


class Image:
    """A file system image and what the tests do to it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def debugfs(self, *commands, write=False):
        script = self.path.with_suffix(".cmds")
        script.write_text("".join(c + "\n" for c in commands))
        out = run("debugfs", *(["-w"] if write else []), "-f", script, self.path)[1]
        # What was typed and the banner are not answers.
        lines = [ln for ln in out.splitlines() if not ln.startswith("debugfs")]
        return "\n".join(ln for ln in lines if ln)

    def change(self, *commands):
        out = self.debugfs(*commands, write=True)
        assert not out, f"debugfs complained:\n{out}"

    def fsck(self, *flags, ok=None):
        return run("e2fsck", *flags, self.path, ok=ok)

    def clean(self):
        code, out = self.fsck("-fn")
        assert code == 0, f"e2fsck -fn: exit code {code}\n{out}"

    def names(self, folder="/big"):
        """Names and inode numbers of a directory, in no particular order."""
        entries = []
        for line in self.debugfs(f"ls -p {folder}").splitlines():
            if (m := re.fullmatch(r"/(\d+)/\d+/\d+/\d+/(.*)/\d*/", line)) and m[2] not in (".", "..") and m[1] != "0":
                entries.append((m[2], int(m[1])))
        return sorted(entries)

    def keys(self, folder="/big"):
        out = self.debugfs(f"itree_dump -k {folder}")
        found = [(int(a), int(b, 16)) for a, b in re.findall(r"^(\d+) (0x[0-9a-f]{8})$", out, re.M)]
        assert len(found) == len(out.splitlines()), out
        return found

    def nodes(self, folder="/big"):
        """{block of the segment: (kind, level, entries, limit)}"""
        out = self.debugfs(f"itree_dump -n {folder}")
        found = re.findall(r"^Block \d+ \(\+(\d+)\).*?: (\w+), level (\d+), (\d+) of (\d+) entries", out, re.M)
        return {int(n): (kind, int(level), int(count), int(limit)) for n, kind, level, count, limit in found}

    def stat(self, folder="/big"):
        return dict(line.split(": ", 1) for line in self.debugfs(f"itree_stat {folder}").splitlines())

    def inode(self, path):
        out = self.debugfs(f"stat {path}")
        flags = int(re.search(r"Flags: (0x[0-9a-f]+)", out)[1], 16)
        return int(re.search(r"Inode: (\d+)", out)[1]), flags, out

    def has_tree(self, folder="/big"):
        return bool(self.inode(folder)[1] & ITREE_FL)

    def has_segment(self, folder="/big"):
        return "2147483648" in self.inode(folder)[2]

    def set_flags(self, path, on=0, off=0):
        flags = self.inode(path)[1]
        self.change(f"sif {path} flags 0x{flags & ~off | on:x}")

    def exact(self, folder="/big"):
        """The tree is sound and has the directory's names, no more, no less."""
        assert "clean" in (out := self.debugfs(f"itree_verify {folder}")), out
        assert sorted(ino for ino, _ in self.keys(folder)) == sorted(ino for _, ino in self.names(folder))

    def poke(self, block, offset, data, folder="/big", keep_csum=False):
        # debugfs reads lines of limited length.
        for i in range(0, len(data), 1000):
            args = f"{folder} {block} {offset + i} {data[i : i + 1000].hex()}"
            self.change(f"itree_poke {'-c ' if keep_csum else ''}{args}")

    def block_size(self):
        return int(re.search(r"Block size: +(\d+)", run("dumpe2fs", "-h", self.path)[1])[1])

    def peek(self, block, offset, size, folder="/big"):
        out = self.debugfs(f"itree_dump -n {folder}")
        phys = int(re.search(rf"\(\+{block}\), physical (\d+)", out)[1])
        with self.path.open("rb") as f:
            f.seek(phys * self.block_size() + offset)
            return f.read(size)

    def copy(self, path):
        shutil.copyfile(self.path, path)
        return Image(path)


def maildir_name(i):
    return f"{i * 0x9E3779B97F4A7C15 & 2**64 - 1:016x}.msg"


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """What mke2fs -d copies: a large directory, a small one, a file."""
    top = tmp_path_factory.mktemp("source")
    (top / "big").mkdir()
    for i in range(FILES):
        # Not empty: e2fsck deletes empty files that no directory names.
        (top / "big" / maildir_name(i)).write_text("x")
    (top / "small").mkdir()
    for i in range(20):
        (top / "small" / f"file-{i}").write_text(f"{i}\n")
    (top / "file").write_text("a file\n")
    return top


def make(path, source=None, features="itree", block_size=1024, size="32M", extra=()):
    argv = ["-q", "-F", "-t", "ext4", "-O", features, "-b", block_size, "-N", 6000, *extra]
    if source:
        argv += ["-d", source]
    run("mke2fs", *argv, path, size)
    return Image(path)


CONFIGS = {
    f"{bs // 1024}k-{'csum' if csum else 'nocsum'}": (bs, csum)
    for bs, csum in itertools.product((1024, 4096), (True, False))
}


@pytest.fixture(scope="session")
def masters(source, tmp_path_factory):
    """One image a configuration, with a tree on /big, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("masters"), {}

    def get(config):
        if config not in made:
            bs, csum = CONFIGS[config]
            features = "itree,metadata_csum" if csum else "itree,^metadata_csum"
            image = make(folder / f"{config}.img", source, features, bs)
            code, out = image.fsck("-fyD")
            assert code in (0, 1), out
            assert image.has_tree()
            made[config] = image
        return made[config]

    return get


@pytest.fixture(params=CONFIGS)
def image(request, masters, tmp_path):
    """A copy of such an image for the test to break, in every configuration."""
    return masters(request.param).copy(tmp_path / "fs.img")


@pytest.fixture
def one(masters, tmp_path):
    """The same in one configuration only."""
    return masters("1k-csum").copy(tmp_path / "fs.img")
