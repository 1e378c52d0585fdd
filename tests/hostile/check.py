# SPDX-License-Identifier: GPL-2.0-only
"""One image: damage it, let e2fsck repair it, see whether anything was lost.

A name that stood in a directory block which the damage did not touch must still be there, with its inode. Where
the damage hit the directory's inode or extents, its blocks may be beyond finding: then the inode must be reachable,
by any name (e2fsck puts it into lost+found).
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
import subprocess

import bases
import hostile
import ondisk

LIMIT = 60  # seconds for one run of a tool; they take a tenth of one
# What e2fsck -fn may still say of an image whose clusters -fy has found shared against the rules of bigalloc: pristine
# e2fsck does not put that right in one run either, as tests/e2fsprogs/test_hostile.py shows. See upstream_too().
CLUSTERS = re.compile(
    r"Inode \d+ logical block \d+ \(physical block \d+\) violates cluster allocation rules\.|Will fix in pass 1B\.|"
    r"Inode \d+, i_blocks is \d+, should be \d+\.  Fix\? no|Running additional passes .*|Pass \d[A-Z]?: .*|"
    r"Multiply-claimed block\(s\) in inode \d+: .*|\(There are \d+ inodes containing multiply-claimed blocks\.\)|"
    r"File .* \(inode #\d+, mod time .*\) |  has \d+ multiply-claimed block\(s\), shared with \d+ file\(s\):|"
    r"Clone multiply-claimed blocks\? no|Delete file\? no|Block bitmap differences: .*|Free blocks count wrong .*|"
    r"Fix\? no|e2fsck \d.*|.*: \*+ WARNING: .*|.*: \d+/\d+ files .*|"
)
# The same of an extent block and its inode if both have a wrong checksum: the block's is never put right.
CHECKSUMS = "extent block passes checks, but checksum does not match extent"
SIGNAL = re.compile(r"^Signal \(\d+\)", re.M)
SANITIZER = re.compile(r"runtime error:|AddressSanitizer|UndefinedBehaviorSanitizer")


@dataclasses.dataclass
class Verdict:
    seed: int
    base: str
    damage: str
    kinds: list
    state: str  # "passed", "excused" or "failed"
    why: str = ""
    output: str = ""
    rebuilt: bool = False  # every directory that had a tree has one again
    no: bool = False  # all questions are answered no

    def command(self):
        return f"tests/hostile/fsck {'--no ' * self.no}--seeds {self.seed} --base {self.base} --verbose"


class Good:
    """What a good image holds."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        with ondisk.Disk(path, write=False) as disk:
            self.tree = disk.tree()
            # Blocks that say where an inode's blocks are
            self.maps = {ino: {e.home for e in disk.extents(ino)} - {None} for ino in self.inodes() | set(self.tree)}
            self.trees = [ino for ino in self.tree if disk.flags(disk.inode(ino)) & ondisk.ITREE_FL]
            self.kind = {ino: self.what(disk, ino) for ino in self.inodes()}

    def inodes(self):
        return {ino for blocks in self.tree.values() for entries in blocks.values() for _, ino in entries}

    @staticmethod
    def what(disk, ino):
        inode = disk.inode(ino)
        return disk.mode(inode) & 0xF000, inode[100:104]  # the type, and the generation: it is the same inode


def run(argv):
    """(exit code or None if it hung, negative if killed; what it said)"""
    with subprocess.Popen([str(a) for a in argv], env=bases.environ(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as proc:  # fmt: skip
        try:
            out = proc.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            proc.kill()
            return None, proc.communicate()[0].decode(errors="replace")
        return proc.returncode, out.decode(errors="replace")


def repair(e2fsck, path):
    """Run -fy, then -fn; returns (what is wrong or None, what they said)."""
    code, out = run([e2fsck, "-fy", path])
    printed = f"--- e2fsck -fy: exit code {code}\n{out}"
    if code is None:
        return f"e2fsck -fy did not end within {LIMIT} s", printed
    if SANITIZER.search(out) or code < 0 or code == 86:
        return f"e2fsck -fy crashed (exit code {code})", printed
    if code not in (0, 1):
        return f"e2fsck -fy: exit code {code}", printed
    code, out = run([e2fsck, "-fn", path])
    printed += f"--- e2fsck -fn: exit code {code}\n{out}"
    if code is None:
        return f"e2fsck -fn did not end within {LIMIT} s", printed
    if SANITIZER.search(out) or code < 0 or code == 86:
        return f"e2fsck -fn crashed (exit code {code})", printed
    if code:
        return f"not clean after one repair: e2fsck -fn: exit code {code}", printed
    return None, printed


def look_only(e2fsck, path):
    """Answer no to everything; returns (what is wrong or None, what it said)."""
    before = pathlib.Path(path).read_bytes()
    code, out = run([e2fsck, "-fn", path])
    printed = f"--- e2fsck -fn: exit code {code}\n{out}"
    if code is None:
        return f"e2fsck -fn did not end within {LIMIT} s", printed
    # e2fsck catches signals, and ends with 8.
    if SANITIZER.search(out) or SIGNAL.search(out) or code < 0 or code == 86:
        return f"e2fsck -fn crashed (exit code {code})", printed
    if code not in (0, 4, 8, 12):
        return f"e2fsck -fn: exit code {code}", printed
    if pathlib.Path(path).read_bytes() != before:
        return "e2fsck -fn has changed the image", printed
    return None, printed


def lost(good, damage, disk):
    """What should be there and is not: a list of sentences."""
    now = disk.tree()
    reachable = {ino for blocks in now.values() for entries in blocks.values() for _, ino in entries}
    # e2fsck clears an inode that makes no sense.
    hit = damage.hit_inodes | {ino for ino, blocks in good.maps.items() if blocks & damage.hit_blocks}
    bad = []
    for folder, blocks in good.tree.items():
        found = {entry for entries in now.get(folder, {}).values() for entry in entries}
        for block, entries in blocks.items():
            if block in damage.hit_blocks:
                continue
            for name, ino in entries:
                if (name, ino) in found or ino in hit:
                    continue
                if (folder in hit or folder not in now) and ino in reachable:
                    continue
                where = "has gone" if ino not in reachable else "is elsewhere only"
                text = name.decode(errors="replace")
                bad.append(f"{text} (inode {ino}) of directory {folder}, block {block}, {where}")
    for ino in good.inodes() & reachable - hit:
        if good.kind[ino] != good.what(disk, ino):
            bad.append(f"inode {ino} is another one now")
    return bad


class Checker:
    """Checks seeds in a directory of its own; not to be shared between processes."""

    def __init__(self, folder, root=None, pristine=None):
        self.folder = pathlib.Path(folder)
        self.e2fsck = bases.tool("e2fsck", root)
        self.debugfs = bases.tool("debugfs", root)
        self.pristine = pristine and bases.tool("e2fsck", pristine)
        self.good = {}

    def one(self, seed, base=None, kinds=None, keep=None, no=False):
        """Verdict on a seed. base: image to damage, else the seed decides; keep: leave the damaged image there.

        no: run `e2fsck -fn` only, which must neither crash nor change anything.
        """
        name = base or bases.of_seed(seed)
        path = bases.get(name)
        image = self.folder / "image"
        shutil.copyfile(path, image)
        damage = hostile.corrupt(image, seed, kinds)
        if keep:
            shutil.copyfile(image, keep)
        verdict = Verdict(seed, name, str(damage), damage.kinds, "passed", no=no)
        if no:
            verdict.why, verdict.output = look_only(self.e2fsck, image)
            verdict.state = "failed" if verdict.why else "passed"
            return verdict
        self.repair_and_look(image, damage, verdict)
        return verdict

    def repair_and_look(self, image, damage, verdict):
        """Fill in the verdict on an image that was made from verdict.base by the damage."""
        path = bases.get(verdict.base)
        if verdict.base not in self.good:
            self.good[verdict.base] = Good(path)
        why, verdict.output = repair(self.e2fsck, image)
        if why:
            verdict.state, verdict.why = "failed", why
            if self.upstream_too(why, verdict.base, verdict.output, path.with_suffix(".twin"), damage):
                # A few more runs must do it, unless pristine e2fsck never gets there; and nothing may be lost.
                ours = [repair(self.e2fsck, image)[0] for _ in range(3)][-1]
                never = CHECKSUMS in verdict.output.split("--- e2fsck -fn")[-1]
                if ours is None or never or [repair(self.pristine, self.folder / "twin")[0] for _ in range(3)][-1]:
                    verdict.state = "excused"
        if verdict.state != "failed":
            self.look(image, self.good[verdict.base], damage, verdict)

    def look(self, image, good, damage, verdict):
        with ondisk.Disk(image, write=False) as disk:
            bad = lost(good, damage, disk)
            trees = [i for i in disk.tree() if disk.flags(disk.inode(i)) & ondisk.ITREE_FL]
        verdict.rebuilt = set(good.trees) <= set(trees)
        if trees:
            argv = [self.debugfs, image, "-f", self.folder / "cmds"]
            (self.folder / "cmds").write_text("".join(f"itree_verify <{ino}>\n" for ino in trees))
            out = run(argv)[1]
            verdict.output += out
            bad += [f"itree of {i} is not exact" for i in trees if f"itree of directory {i}: clean" not in out]
        if bad and "group" in damage.kinds and self.lost_by_pristine(good, damage, bad):
            verdict.state, verdict.why = "excused", f"{len(bad)} names lost, by pristine e2fsck as well: {bad[0]}"
        elif bad:
            verdict.state = "failed"
            verdict.why = f"{len(bad)} faults, the first: " + "; ".join(bad[:5])

    def upstream_too(self, why, base, printed, twin, damage):
        """Whether pristine e2fsck leaves the same unrepaired.

        Found out by running it on the same image without trees, after the same damage; or, where the damage is to
        the extents of a tree and so has nothing to hit there, known and shown by a test (CLUSTERS, CHECKSUMS).
        Hangs and sanitizers' reports are never excused.
        """
        if not self.pristine or not re.match(r"not clean|e2fsck -fy: exit code", why):
            return False
        image = self.folder / "twin"
        shutil.copyfile(twin, image)
        first, _, second = printed.partition("--- e2fsck -fn")
        if CHECKSUMS in first and CHECKSUMS in second:
            return True
        if "bigalloc" in base and "violates cluster" in first:
            if all(CLUSTERS.fullmatch(line) for line in second.splitlines()[1:]):
                return True
        hostile.replay(image, damage)
        return repair(self.pristine, image)[0] is not None

    def lost_by_pristine(self, good, damage, bad):
        """Whether pristine e2fsck loses the same: it believes a descriptor that says its inodes were never used."""
        if not self.pristine:
            return False
        image = self.folder / "twin"
        shutil.copyfile(good.path.with_suffix(".twin"), image)
        hostile.replay(image, damage)
        repair(self.pristine, image)
        with ondisk.Disk(image, write=False) as disk:
            return set(bad) <= set(lost(good, damage, disk))
