# SPDX-License-Identifier: GPL-2.0-only
"""Kernel, debugfs, fuse2fs and e2fsck take turns on one file system; nothing is lost between them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import subprocess
import time

from kt.guest import Failed, Guest
from kt.registry import case


def name_of(rng: random.Random, tag: str) -> str:
    return f"{tag}-{rng.getrandbits(64):016x}{'x' * rng.randrange(100)}"


class Tree:
    """What the directory must hold: name and contents of each file."""

    def __init__(self, g: Guest, seed: int):
        self.g = g
        self.rng = random.Random(seed)
        self.files: dict[str, bytes] = {}

    def some(self, count: int) -> list[str]:
        return self.rng.sample(sorted(self.files), count)

    def change(self, at: str, tag: str, create: int, remove: int, rename: int) -> None:
        """Change the directory through a mount, of the kernel or of fuse2fs."""
        for name in self.some(remove):
            os.unlink(f"{at}/{name}")
            del self.files[name]
        for name in self.some(rename):
            new = name_of(self.rng, f"{tag}-moved")
            os.rename(f"{at}/{name}", f"{at}/{new}")
            self.files[new] = self.files.pop(name)
        for _ in range(create):
            name = name_of(self.rng, tag)
            self.files[name] = name.encode()
            pathlib.Path(at, name).write_bytes(self.files[name])
        # Over an existing name: the entry gets another inode.
        for name in self.some(remove // 4):
            new = name_of(self.rng, f"{tag}-over")
            pathlib.Path(at, new).write_bytes(new.encode())
            os.rename(f"{at}/{new}", f"{at}/{name}")
            self.files[name] = new.encode()

    def compare(self, at: str, who: str) -> list[str]:
        found = os.listdir(at)
        self.g.equal(len(found), len(set(found)), f"{who}: names listed twice")
        self.g.equal(sorted(set(found) ^ set(self.files))[:5], [], f"{who}: names too many or missing")
        for name in found:
            if name in self.files and pathlib.Path(at, name).read_bytes() != self.files[name]:
                self.g.fail(f"{who}: other contents in {name}")
        return found


def debugfs(g: Guest, *commands: str, write: bool = True) -> str:
    script = g.tmp / "debugfs.cmds"
    g.tmp.mkdir(parents=True, exist_ok=True)
    script.write_text("".join(f"{c}\n" for c in commands))
    res = g.run(g.tool("debugfs"), *(["-w"] if write else []), "-f", script, g.dev, timeout=300)
    return "\n".join(x for x in res.stdout.splitlines() if x and not x.startswith("debugfs"))


def check(g: Guest, who: str) -> None:
    """Check while unmounted: e2fsck finds no error, and the tree is there and exact."""
    before = len(g.fails)
    g.fsck()
    output = debugfs(g, "itree_verify /d", write=False)
    g.want("clean" in output, f"after {who}: itree_verify says {output[:200]!r}")
    if len(g.fails) > before:
        raise Failed(f"the file system is not as {who} should have left it")


@contextlib.contextmanager
def fuse(g: Guest):
    """fuse2fs serves the device."""
    at = g.tmp / "fuse"
    at.mkdir(parents=True, exist_ok=True)
    program = pathlib.Path(g.job["sbin"]).parent / "bin" / "fuse2fs"
    if not program.exists():
        raise Failed("fuse2fs was not built: are the headers of FUSE installed (make deps)?")
    g.run("modprobe", "-q", "fuse", check=False)
    proc = subprocess.Popen([program, g.dev, at, "-f"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if os.path.ismount(at) or proc.poll() is not None:
                break
            time.sleep(0.1)
        if not os.path.ismount(at):
            proc.kill()
            raise Failed(f"fuse2fs does not mount: {proc.communicate()[1].strip()[-300:]}")
        yield str(at)
        g.run("umount", at, timeout=300)
        g.equal(proc.wait(timeout=120), 0, "fuse2fs: exit code")
    finally:
        if os.path.ismount(at):
            subprocess.run(["umount", "-l", at], check=False)
        proc.kill()


def turn_kernel(g: Guest, tree: Tree, round_: int) -> None:
    g.mount()
    if not os.path.isdir(g.path()):
        os.mkdir(g.path())
    tree.compare(g.path(), f"kernel, round {round_}")
    if tree.files:
        g.t("self", "--dir", g.path(), *g.order)
    first = not tree.files
    tree.change(g.path(), f"kernel{round_}", 1500 if first else 300, 0 if first else 200, 0 if first else 60)
    g.want_tree(g.path())
    g.umount()


def turn_debugfs(g: Guest, tree: Tree, round_: int) -> None:
    g.tmp.mkdir(parents=True, exist_ok=True)
    commands = [] if tree.files else ["mkdir /d", *["expand_dir /d"] * 100]
    commands.append("cd /d")
    first = not tree.files
    for name in [] if first else tree.some(200):
        commands.append(f"rm {name}")
        del tree.files[name]
    for number in range(1500 if first else 200):
        name = name_of(tree.rng, f"debugfs{round_}")
        tree.files[name] = str(number).encode()
        source = g.tmp / f"source-{number}"
        source.write_bytes(tree.files[name])
        commands.append(f"write {source} {name}")
    debugfs(g, *commands)
    if first:
        # A linear directory so far: e2fsck gives it an htree and a tree.
        g.equal(
            g.run(g.tool("e2fsck"), "-fyD", g.dev, check=False, timeout=300).returncode in (0, 1), True, "e2fsck -fyD"
        )


def turn_fuse(g: Guest, tree: Tree, round_: int) -> None:
    with fuse(g) as at:
        tree.compare(f"{at}/d", f"fuse2fs, round {round_}")
        tree.change(f"{at}/d", f"fuse{round_}", 200, 150, 50)


TURNS = {"kernel": turn_kernel, "debugfs": turn_debugfs, "fuse2fs": turn_fuse}


def roundtrip(g: Guest) -> None:
    tree = Tree(g, g.p["seed"])
    for round_, who in enumerate(g.p["turns"]):
        TURNS[who](g, tree, round_)
        check(g, f"{who}, round {round_}")
    g.mount()
    tree.compare(g.path(), "the kernel in the end")
    g.t("self", "--dir", g.path(), *g.order)
    g.equal(g.counter("drops"), 0, "trees dropped")
    g.stats["names"] = len(tree.files)


KERNEL_FIRST = ("kernel", "debugfs", "kernel", "fuse2fs", "kernel", "debugfs", "fuse2fs")
TOOLS_FIRST = ("debugfs", "kernel", "fuse2fs", "debugfs", "kernel")

for _id, _turns, _features, _bs in (
    ("kernel-first-1k", KERNEL_FIRST, "", 1024),
    ("kernel-first-4k", KERNEL_FIRST, "^metadata_csum", 4096),
    ("tools-first-1k", TOOLS_FIRST, "^metadata_csum", 1024),
    ("tools-first-4k", TOOLS_FIRST, "", 4096),
):
    case(
        f"roundtrip-{_id}", "roundtrip", {"seed": len(_id), "turns": _turns}, features=_features,
        mkfs=("-b", str(_bs), "-N", "6000"), size="96M", cost=40, limit=400,
    )(roundtrip)  # fmt: skip
