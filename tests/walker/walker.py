# SPDX-License-Identifier: GPL-2.0-only
"""One walk: random steps on one volume, each followed by a check against a model and by e2fsck."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import time
import zlib

import configs
from configs import call, tool

DIR, FILE, SYMLINK = 2, 1, 7  # as in directory entries
INDEX_FL, INLINE_FL = 0x1000, 0x10000000
LOST_AND_FOUND = 11
NO_ROOM = re.compile(r"no space|could not allocate|no free space|No space left|File too large|enough space", re.I)
# What e2fsck says of quotas when something that does not count them has changed the volume
NO_NODE = "itree dropped: no space for its nodes"
LEFT = re.compile(r"Directory inode \d+ has unused itree blocks\.  Clear\? no")
QUOTA = re.compile(
    r"\[QUOTA WARNING\]|Update quota info|\[ERROR\] quotaio|could be (narrower|shorter).*IGNORED|files \(|^$"
)


class Failure(Exception):
    """The volume or a tool is not as it must be."""


class Node:
    """A file, symlink or directory; hard links share it."""

    def __init__(self, kind, size=0, name="", target=""):
        self.kind, self.target = kind, target
        self.links = 0
        data = (name.encode() * (size // max(len(name), 1) + 1))[:size]
        self.size, self.sum = size, zlib.crc32(data)
        self.data = data
        self.entries = {} if kind == DIR else None


@dataclasses.dataclass
class Op:
    """One operation: what a program is to do, and what the model does if it succeeds."""

    words: tuple
    apply: object


@dataclasses.dataclass
class Reached:
    """What the checks of a walk have seen."""

    steps: int = 0
    ops: int = 0
    refused: int = 0  # operations for which there was no room
    depths: set = dataclasses.field(default_factory=set)
    leaf_begins: bool = False
    index_begins: bool = False
    grown: bool = False  # a tree that begins a leaf of depth 2 or more, without `reshape`
    who: dict = dataclasses.field(default_factory=dict)


class Model:
    """What the volume must hold."""

    def __init__(self):
        self.root = Node(DIR)

    def dirs(self):
        """[(path, node)]"""
        found, todo = [], [("", self.root)]
        for path, node in todo:
            found.append((path, node))
            todo += [(f"{path}/{n}", e) for n, e in node.entries.items() if e.kind == DIR]
        return found

    def get(self, path):
        node = self.root
        for part in path.split("/")[1:]:
            node = node.entries[part]
        return node

    def add(self, path, node):
        folder, _, name = path.rpartition("/")
        self.get(folder).entries[name] = node
        node.links += 1

    def remove(self, path):
        folder, _, name = path.rpartition("/")
        node = self.get(folder).entries.pop(name)
        node.links -= 1
        return node


def shown(path):
    """What `volume show` says of a volume: (tree of a Model, {inode: ...}, [directories])"""
    code, out = call([configs.helper(), "show", path])
    if code:
        raise Failure(f"the volume cannot be read: exit code {code}\n{out[-1500:]}")
    entries, dirs, files, folder = {}, {}, {}, None
    for line in out.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "D":
            ino, flags, *numbers = rest.split()
            folder = int(ino)
            dirs[folder] = (int(flags, 16), *map(int, numbers))
            entries[folder] = []
        elif kind == "E":
            ino, typ, name = rest.split(" ", 2)
            entries[folder].append((name, int(ino), int(typ)))
        elif kind in "LF":
            ino, what = rest.split(" ", 1)
            files[int(ino)] = (kind, what)
    return entries, dirs, files


def learn(path):
    """The model of a template"""
    entries, _, files = shown(path)
    model, nodes = Model(), {2: None}

    def build(ino, node):
        for name, child, kind in entries[ino]:
            if child not in nodes:
                nodes[child] = new = Node(kind)
                if kind == SYMLINK:
                    new.target = files[child][1]
                elif kind == FILE:
                    size, total = files[child][1].split()
                    new.size, new.sum, new.data = int(size), int(total, 16), None
            node.entries[name] = nodes[child]
            nodes[child].links += 1
            if kind == DIR:
                build(child, nodes[child])

    build(2, model.root)
    return model


class Walk:
    """A seed's walk in a folder of its own."""

    def __init__(self, seed, folder, config=None, steps=None, aimed=True, mounts=(), keep=None):
        self.seed, self.aimed, self.mounts, self.keep = seed, aimed, mounts, keep
        self.config = configs.CONFIGS[config or configs.of_seed(seed)]
        self.rng = random.Random(f"itree walk 1 {seed} {self.config.name}")
        self.length = steps or self.rng.randint(4, 12)
        self.image = pathlib.Path(folder) / f"walk-{seed}.img"
        self.folder = pathlib.Path(folder)
        self.log, self.reached, self.serial = [], Reached(), 0
        self.feature = not self.config.late
        self.reshaped = False

    # --- programs ---

    def say(self, text):
        self.log.append(text)

    def expect(self, name, *args, ok=(0,), stdin="", limit=60):
        code, out = call([tool(name), *args], stdin, limit)
        if code not in ok:
            raise Failure(f"{name} {' '.join(map(str, args))}: exit code {code}\n{out[-2500:]}")
        return code, out

    def volume(self, lines):
        code, out = call([configs.helper(), "run", self.image], "".join(line + "\n" for line in lines))
        answers = [line for line in out.splitlines() if line.startswith(("ok", "error"))]
        if code or len(answers) != len(lines):
            raise Failure(f"libext2fs: exit code {code}\n{out[-1500:]}")
        return answers

    def done(self, op, error):
        """Account for an operation; error: what the program said, or empty."""
        self.reached.ops += 1
        if not error:
            op.apply()
        elif NO_ROOM.search(error):
            self.reached.refused += 1
        else:
            raise Failure(f"{' '.join(map(str, op.words))}: {error}")

    # --- random operations ---

    def name(self, prefix):
        self.serial += 1
        length = self.rng.choice((12, 40, 120, 240, 240, 255))
        return f"{prefix}{self.serial:05}".ljust(length, self.rng.choice("xyZ"))

    def ops(self, count):
        """Operations that do not depend on each other: any of them may fail for want of room."""
        rng, model, busy, out = self.rng, self.model, set(), []
        dirs = model.dirs()
        paths = [p for p, _ in dirs if p != "/lost+found" and not p.startswith("/lost+found/")]

        def folder():
            return "/big" if rng.random() < 0.6 else rng.choice(paths)

        def old(kinds=(FILE, SYMLINK)):
            for _ in range(30):
                where = folder()
                names = model.get(where).entries if where else model.root.entries
                if not names:
                    continue
                name = rng.choice(list(names))
                path = f"{where}/{name}"
                node = names[name]
                if name in ("ballast", "lost+found", "common") or node.kind not in kinds or path in busy:
                    continue
                # Below a directory that moves away in this step
                if any(path.startswith(b + "/") for b in busy):
                    continue
                if node.kind == DIR and (path in ("/big", "/side", "/small") or any(b.startswith(path) for b in busy)):
                    continue
                busy.add(path)
                return path, node
            return None

        def fresh(prefix):
            for _ in range(30):
                path = f"{folder()}/{self.name(prefix)}"
                if not any(path.startswith(b + "/") for b in busy):
                    busy.add(path)
                    return path
            raise configs.WalkError("every directory is busy")

        for _ in range(count):
            what = rng.choices(("file", "link", "unlink", "rename", "over", "mkdir", "rmdir", "symlink"),
                               (16, 16, 22, 14, 6, 6, 4, 10))[0]  # fmt: skip
            if what == "file":
                path = fresh("file")
                size = rng.choice((0, 10, 60, 500, 3000))
                node = Node(FILE, size, path.rpartition("/")[2])
                out.append(Op(("file", path, size), lambda p=path, n=node: model.add(p, n)))
            elif what == "link" and (found := old((FILE,))):
                path = fresh("link")
                out.append(Op(("link", found[0], path), lambda p=path, n=found[1]: model.add(p, n)))
            elif what == "unlink" and (found := old()):
                out.append(Op(("unlink", found[0]), lambda p=found[0]: model.remove(p)))
            elif what == "rename" and (found := old((FILE, SYMLINK, DIR))):
                source = found[0]
                for _ in range(30):
                    path = fresh("renamed")
                    if not path.startswith(source + "/"):
                        break
                else:
                    continue
                # What is below a directory that moves is left alone until the next step.
                busy.add(path)
                out.append(Op(("rename", source, path), lambda s=source, p=path: model.add(p, model.remove(s))))
            elif what == "over" and (found := old()) and (target := old()) and found[1] is not target[1]:

                def over(s=found[0], p=target[0]):
                    model.remove(p)
                    model.add(p, model.remove(s))

                out.append(Op(("rename", found[0], target[0]), over))
            elif what == "mkdir":
                path = fresh("dir")
                out.append(Op(("mkdir", path), lambda p=path: model.add(p, Node(DIR))))
            elif what == "rmdir" and (found := old((DIR,))) and not found[1].entries:
                if any(b.startswith(found[0] + "/") for b in busy):
                    continue
                out.append(Op(("rmdir", found[0]), lambda p=found[0]: model.remove(p)))
            elif what == "symlink":
                path, target = fresh("symlink"), "t" * rng.choice((5, 59, 60, 200, 900))
                node = Node(SYMLINK, target=target)
                out.append(Op(("symlink", path, target), lambda p=path, n=node: model.add(p, n)))
        return out

    def many(self, first="/big", leaves=0, count=None):
        """A line for `volume`: many links in one directory."""
        self.serial += 1
        prefix, length = f"many{self.serial}-", self.rng.choice((100, 240, 250))
        count = count or self.rng.randint(20, 400)
        return (f"names {first} {prefix} 0 {count} {length} /common {leaves}", prefix, length, first)

    def made(self, answer, given):
        _, prefix, length, where = given
        _, count, output = answer.split(" ", 2)
        if output and not NO_ROOM.search(output):
            raise Failure(f"{given[0]}: {output}")
        node = self.model.get("/common")
        for n in range(int(count)):
            self.model.add(f"{where}/{f'{prefix}{n:06}'.ljust(length, 'n')}", node)
        self.reached.ops += int(count)
        return int(count)

    # --- steps: each changes the volume and the model ---

    def by_library(self):
        ops = self.ops(self.rng.randint(5, 80))
        self.say(f"libext2fs: {len(ops)} operations")
        for op, answer in zip(ops, self.volume([" ".join(map(str, op.words)) for op in ops]), strict=True):
            self.done(op, "" if answer.startswith("ok") else answer)

    def by_library_many(self):
        given = self.many(self.rng.choice(("/big", "/big", "/side")))
        answer = self.volume([given[0]])[0]
        self.say(f"libext2fs: {given[0]}: {answer}")
        self.made(answer, given)

    def by_library_remove(self):
        """Names go away by the hundred, of one directory."""
        where = self.rng.choice(("/big", "/big", "/side"))
        names = [n for n, e in self.model.get(where).entries.items() if e.kind != DIR]
        gone = self.rng.sample(names, self.rng.randint(0, len(names) * 2 // 3))
        self.say(f"libext2fs: unlink {len(gone)} of {len(names)} names of {where}")
        ops = [Op(("unlink", f"{where}/{n}"), lambda p=f"{where}/{n}": self.model.remove(p)) for n in gone]
        for op, answer in zip(ops, self.volume([" ".join(op.words) for op in ops]), strict=True):
            self.done(op, "" if answer.startswith("ok") else answer)

    def by_boundary(self):
        """Without the tree the directory grows until its last leaf of extents is nearly full."""
        leaves = self.rng.choice((4, 5, 5, 6)) if self.config.block_size == 1024 else self.rng.choice((1, 2, 3, 4, 5))
        given = self.many(leaves=leaves, count=1800)
        lines = ["drop /big", given[0], "build /big"] if self.feature else [given[0]]
        answers = self.volume(lines)
        self.say(f"libext2fs: grow /big to {leaves} full leaves: {answers}")
        self.made(answers[len(lines) // 2], given)

    def by_reshape(self):
        """Any tree of extents that has the same extents is as good."""
        where = self.rng.choice(("/big", "/big", "/big", "/side"))
        limit = self.rng.choice((3, 4, 6, 10, 20, 84, 400))
        line = f"reshape {where} {self.rng.getrandbits(30)} {limit} {self.rng.getrandbits(1)}"
        self.say(f"libext2fs: {line}: {self.volume([line])[0]}")
        self.reshaped = True

    def by_space(self):
        line = f"release {self.rng.randint(1, 200)} {self.rng.getrandbits(30)}"
        if self.rng.random() < 0.4:
            line = f"eat {self.rng.choice((2, 3, 5))} {self.rng.choice((0, 3, 20, 300, 2000))}"
        self.say(f"libext2fs: {line}: {self.volume([line])[0]}")

    def by_tree(self):
        where = self.rng.choice(("/big", "/big", "/side"))
        lines = self.rng.choice(([f"drop {where}"], [f"drop {where}", f"build {where}"], [f"build {where}"]))
        if not self.feature:
            lines = [f"htree {where}"]
        self.say(f"libext2fs: {', '.join(lines)}: {self.volume(lines)}")

    def by_debugfs(self):
        ops, script = self.ops(self.rng.randint(3, 30)), []
        data = self.folder / f"walk-{self.seed}.data"
        for number, op in enumerate(ops):
            what, *args = op.words
            if what == "file" and args[1] <= 60:
                name = args[0].rpartition("/")[2]
                data.with_suffix(f".{number}").write_bytes((name.encode() * (args[1] // len(name) + 1))[: args[1]])
                script.append(f"write {data.with_suffix(f'.{number}')} {args[0]}")
            elif what == "unlink":
                script.append(f"rm {args[0]}")
            elif what in ("mkdir", "rmdir", "symlink"):
                script.append(" ".join([what, *args]))
            else:
                # It has neither rename nor a link that counts, and leaves a file whose data have no room.
                script.append("")
        ops = [op for op, line in zip(ops, script, strict=True) if line]
        script = [line for line in script if line]
        self.say(f"debugfs: {len(script)} operations")
        # As released it leaves inodes that have no name where there is no room for names.
        self.volume([f"release 150 {self.seed}"])
        commands = self.folder / f"walk-{self.seed}.cmds"
        commands.write_text("".join(line + "\n" for line in script))
        _, out = self.expect("debugfs", "-w", "-f", commands, self.image)
        for number in range(len(out) and 200):
            data.with_suffix(f".{number}").unlink(missing_ok=True)
        parts = re.split(r"^debugfs: ", out, flags=re.M)[1:]
        if len(parts) != len(script):
            raise Failure(f"debugfs: {len(parts)} answers to {len(script)} commands\n{out[-1500:]}")
        for op, part in zip(ops, parts, strict=True):
            output = [ln for ln in part.splitlines()[1:] if ln and not ln.startswith("Allocated inode")]
            self.done(op, "\n".join(output))

    def by_debugfs_trees(self):
        where = self.rng.choice(("/big", "/side"))
        lines = [f"itree_drop {where}", f"itree_build {where}", f"itree_verify {where}", f"ex {where}",
                 f"htree_dump {where}", f"stat {where}", f"ls -p {where}", "ncheck 12",
                 f"itree_stat {where}"]  # fmt: skip
        lines = self.rng.sample(lines if self.feature else lines[3:-1], 4)
        self.say(f"debugfs: {', '.join(lines)}")
        commands = self.folder / f"walk-{self.seed}.cmds"
        commands.write_text("".join(line + "\n" for line in lines))
        self.expect("debugfs", "-w", "-f", commands, self.image)

    def by_mount(self, who, top):
        ops = self.ops(self.rng.randint(5, 60))
        if who == "kernel" and self.rng.random() < 0.5:
            # Directories grow by many names at a time, and shrink.
            ops = self.ops(self.rng.randint(200, 600))
        self.say(f"{who}: {len(ops)} operations")
        for op in ops:
            what, *args = op.words
            path = f"{top}{args[0]}"
            try:
                if what == "file":
                    name = args[0].rpartition("/")[2]
                    content = (name.encode() * (args[1] // len(name) + 1))[: args[1]]
                    try:
                        with open(path, "xb") as handle:
                            handle.write(content)
                    except OSError:
                        # Created, perhaps, and then no room for the data
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(path)
                        raise
                elif what == "link":
                    os.link(path, f"{top}{args[1]}")
                elif what == "unlink":
                    os.unlink(path)
                elif what == "rename":
                    os.rename(path, f"{top}{args[1]}")
                elif what == "mkdir":
                    os.mkdir(path)
                elif what == "rmdir":
                    os.rmdir(path)
                elif what == "symlink":
                    os.symlink(args[1], path)
                error = ""
            except OSError as err:
                error = str(err)
            self.done(op, error)
        for path, node in self.model.dirs():
            found = sorted(os.listdir(f"{top}{path}"))
            if found != sorted(node.entries):
                odd = sorted(set(found) ^ set(node.entries))
                raise Failure(f"{who}: {path or '/'}: listed {len(found)} names, not {len(node.entries)}: {odd[:5]}")

    def by_fuse(self):
        top = self.folder / f"walk-{self.seed}.mnt"
        top.mkdir(exist_ok=True)
        argv = [tool("fuse2fs"), self.image, top, "-f", "-o", "fakeroot"]
        with open(self.folder / f"walk-{self.seed}.fuse", "w+") as output:
            proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=configs.environ())
            try:
                for _ in range(2000):
                    if os.path.ismount(top) or proc.poll() is not None:
                        break
                    time.sleep(0.01)
                if not os.path.ismount(top):
                    output.seek(0)
                    raise Failure(f"fuse2fs does not mount: {output.read()[-500:]}")
                self.by_mount("fuse2fs", top)
                subprocess.run(["umount", top], check=True)
                if proc.wait(timeout=60):
                    output.seek(0)
                    raise Failure(f"fuse2fs: exit code {proc.returncode}\n{output.read()[-800:]}")
            finally:
                if os.path.ismount(top):
                    subprocess.run(["umount", "-l", top], check=False)
                proc.kill()
                proc.wait()

    def dropped(self):
        """How many trees the kernel has dropped because a rename found no room for a node."""
        return subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.count(NO_NODE)

    def by_kernel(self):
        dropped = self.dropped()
        top = self.folder / f"walk-{self.seed}.mnt"
        top.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", "-t", "ext4", self.image, top], check=True)
        try:
            self.by_mount("kernel", top)
            if self.feature and self.rng.random() < 0.7:
                what = self.rng.choice((["build"], ["drop"], ["check"], ["build", "-r"]))
                code, out = call([tool("e4itree"), *what, top if "-r" in what else top / "big"])
                self.say(f"kernel: e4itree {' '.join(what)}: exit code {code}")
                if code and not NO_ROOM.search(out):
                    raise Failure(f"e4itree {' '.join(what)}: exit code {code}\n{out[-800:]}")
        finally:
            subprocess.run(["umount", top], check=True)
        if self.dropped() > dropped:
            # No rename fails for that; the blocks of the tree are left to e2fsck.
            _, out = call([tool("e2fsck"), "-fn", self.image])
            asked = [line for line in out.splitlines() if line.endswith("? no")]
            if odd := [line for line in asked if not LEFT.fullmatch(line)]:
                raise Failure(f"e2fsck -fn after a tree was dropped: {odd}\n{out[-2000:]}")
            code, _ = self.expect("e2fsck", "-fp", self.image, ok=(0, 1))
            self.say(f"e2fsck -fp after a tree was dropped: exit code {code}")

    def by_e2fsck(self):
        how = self.rng.choice((["-fyD"], ["-fyD"], ["-fyD"], ["-fy"], ["-fy", "-E", "bmap2extent"],
                               ["-fy", "-E", "fixes_only"], ["-fyv"]))  # fmt: skip
        before, dirs = self.image.read_bytes(), shown(self.image)[1]
        code, out = self.expect("e2fsck", *how, self.image, ok=(0, 1))
        self.say(f"e2fsck {' '.join(how)}: exit code {code}")
        # It may index directories, and put extent trees in fewer blocks.
        if how in (["-fy"], ["-fyv"], ["-fy", "-E", "fixes_only"]) and not self.linear(dirs) and "1E: " not in out:
            changed = self.changed(before)
            if code or changed:
                raise Failure(f"e2fsck {' '.join(how)}: exit code {code}, changed {changed}\n{out[-2000:]}")

    def tune2fs(self, *args):
        # Not all may be had on all volumes: it says no, and the volume is as it was.
        before = self.image.read_bytes()
        code, out = call([tool("tune2fs"), *args, self.image])
        self.say(f"tune2fs {' '.join(args)}: exit code {code}")
        if code not in (0, 1):
            raise Failure(f"tune2fs {' '.join(args)}: exit code {code}\n{out[-1500:]}")
        if code and self.changed(before):
            raise Failure(f"tune2fs {' '.join(args)} refuses, and changes {self.changed(before)}\n{out[-1500:]}")
        return not code

    def by_feature(self):
        if self.feature:
            if not self.tune2fs("-O", "^itree"):
                raise Failure("tune2fs -O ^itree refuses a clean volume")
            self.feature = False
        else:
            self.feature = self.tune2fs("-O", "itree")
            if not self.feature:
                raise Failure("tune2fs -O itree refuses a clean volume")
            if self.rng.random() < 0.7:
                self.say("e2fsck -fyD")
                self.expect("e2fsck", "-fyD", self.image, ok=(0, 1))

    def by_tune2fs(self):
        what = self.rng.choice(("uuid", "csum", "seed", "isize", "quota", "misc"))
        if what == "uuid":
            self.tune2fs("-f", "-U", f"69747265-6500-4000-8000-{self.rng.getrandbits(48):012x}")
        elif what == "csum":
            feature = self.rng.choice(("metadata_csum", "^metadata_csum"))
            if self.tune2fs("-O", feature) and feature == "metadata_csum":
                # Blocks that have no room for a checksum: tune2fs asks for this.
                self.say("e2fsck -fyD")
                self.expect("e2fsck", "-fyD", self.image, ok=(0, 1))
        elif what == "seed":
            self.tune2fs("-O", "metadata_csum_seed")
        elif what == "isize":
            self.tune2fs("-I", "512")
        elif what == "quota":
            # Turned on it counts anew.
            self.tune2fs("-O", "^quota")
            if self.config.quota:
                self.tune2fs("-O", "quota")
        else:
            self.tune2fs("-m", "0", "-c", "30", "-e", "remount-ro")

    def by_resize2fs(self):
        how = self.rng.choice(("grow", "grow", "shrink", "minimum", "bits"))
        blocks = os.path.getsize(self.image) // self.config.block_size
        if how == "bits":
            args = [self.rng.choice(("-b", "-s")), self.image]
        elif how == "minimum":
            args = ["-M", self.image]
        elif how == "grow":
            args = [self.image, blocks + self.rng.randint(1, 2000)]
        else:
            args = [self.image, max(blocks - self.rng.randint(1, blocks // 3), 1500)]
        if blocks > 40000 and how == "grow":
            return
        code, out = call([tool("resize2fs"), *args])
        self.say(f"resize2fs {' '.join(str(a) for a in args if a != self.image)}: exit code {code}")
        # No room, or not this way: it says so. What it then leaves behind is checked as ever.
        if code not in (0, 1):
            raise Failure(f"resize2fs: exit code {code}\n{out[-1500:]}")

    def by_e2image(self):
        if self.rng.random() < 0.5:
            raw = self.image.with_suffix(".raw")
            self.expect("e2image", "-ra", self.image, raw)
            self.say("e2image -ra, and on with the copy")
            with open(raw, "r+b") as handle:
                os.truncate(handle.fileno(), max(os.path.getsize(raw), os.path.getsize(self.image)))
            raw.rename(self.image)
            return
        raw, back = self.image.with_suffix(".qcow"), self.image.with_suffix(".raw")
        self.expect("e2image", "-Q", self.image, raw)
        self.expect("e2image", "-r", raw, back)
        self.say("e2image -Q, -r, and e2fsck of the metadata")
        with open(back, "r+b") as handle:
            os.truncate(handle.fileno(), max(os.path.getsize(back), os.path.getsize(self.image)))
        self.expect("e2fsck", "-fn", back)
        raw.unlink()
        back.unlink()

    def by_undo(self):
        """What a step did is taken back."""
        undo = self.image.with_suffix(".e2undo")
        undo.unlink(missing_ok=True)
        before = self.image.read_bytes()
        self.expect("e2fsck", "-fyD", "-z", undo, self.image, ok=(0, 1))
        self.say("e2fsck -fyD -z, e2undo")
        if undo.exists():
            self.expect("e2undo", undo, self.image)
            undo.unlink()
            if changed := self.changed(before):
                raise Failure(f"e2undo has not taken back what e2fsck did: {changed}")

    def look(self):
        self.say("dumpe2fs, e2freefrag, tune2fs -l, debugfs")
        for name, *args in (("dumpe2fs",), ("e2freefrag",), ("tune2fs", "-l"), ("e2image", "-r")):
            to = ["/dev/null"] if name == "e2image" else []
            if not to:
                self.expect(name, *args, self.image)

    # --- the check ---

    def linear(self, dirs):
        """Is there a directory of three blocks or more without an index?"""
        return any(
            not d[0] & (INDEX_FL | INLINE_FL) and d[1] >= 3 * self.config.block_size and ino != LOST_AND_FOUND
            for ino, d in dirs.items()
        )

    def plain(self, data):
        """An image without superblock and group descriptors: e2fsck sets times, and counts unused inodes anew."""
        size, first = self.config.block_size, struct.unpack_from("<I", data, 1024 + 20)[0]
        blocks, per_group = struct.unpack_from("<I", data, 1024 + 4)[0], struct.unpack_from("<I", data, 1024 + 32)[0]
        wide = struct.unpack_from("<I", data, 1024 + 96)[0] & 0x80
        desc = struct.unpack_from("<H", data, 1024 + 254)[0] if wide else 32
        end = (1024 // size + 1) * size + -(-(blocks - first) // per_group) * desc
        return data[:1024] + bytes(end - 1024) + data[end:]

    def changed(self, before):
        """Where the image differs from what it was"""
        before, now = self.plain(before), self.plain(self.image.read_bytes())
        if now == before:
            return ""
        if len(now) != len(before):
            return f"size {len(before)} to {len(now)}"
        size = self.config.block_size
        odd = [at // size for at in range(0, len(now), size) if now[at : at + size] != before[at : at + size]]
        return f"blocks {odd[:12]}, {len(odd)} in all"

    def check(self, counted):
        if not counted:
            code, out = call([tool("e2fsck"), "-fp", self.image])
            odd = [ln for ln in out.splitlines() if not QUOTA.search(ln)]
            if code not in (0, 1) or odd:
                raise Failure(f"e2fsck -fp, which is to count quotas: exit code {code}\n{out[-2000:]}")
        before, dirs = self.image.read_bytes(), shown(self.image)[1]
        for how in ("-fn", "-fp", "-fp") if self.linear(dirs) else ("-fn", "-fp"):
            code, out = call([tool("e2fsck"), how, self.image])
            if code:
                raise Failure(f"e2fsck {how}: exit code {code}\n{out[:2500]}")
            if (changed := self.changed(before)) and how == "-fp" and self.linear(dirs):
                # It indexes them in passing, and says nothing.
                before, changed = self.image.read_bytes(), ""
            if changed:
                raise Failure(f"e2fsck {how} changes {changed}\n{out[:2500]}")
        self.compare()
        self.reached.steps += 1

    def compare(self):
        entries, dirs, files = shown(self.image)
        same, reached = {}, self.reached

        def one(path, node, ino):
            found = {name: (child, kind) for name, child, kind in entries[ino]}
            if len(found) != len(entries[ino]):
                raise Failure(f"{path or '/'} has names twice")
            if missing := sorted(set(node.entries) - set(found)):
                raise Failure(f"{path or '/'} has lost {len(missing)} of {len(node.entries)} names, as {missing[0]}")
            if more := sorted(set(found) - set(node.entries)):
                raise Failure(f"{path or '/'} has {len(more)} names too many, as {more[0]}")
            for name, child in node.entries.items():
                number, kind = found[name]
                if kind != child.kind:
                    raise Failure(f"{path}/{name} is of type {kind}, not {child.kind}")
                if same.setdefault(number, child) is not child:
                    raise Failure(f"{path}/{name}: inode {number} has names that do not belong together")
                if child.kind == DIR:
                    one(f"{path}/{name}", child, number)
                elif child.kind == SYMLINK and files[number][1] != child.target:
                    raise Failure(f"{path}/{name} points elsewhere")
                elif child.kind == FILE and path + name != "ballast":
                    size, total = files[number][1].split()
                    if child.data is not None:
                        right = int(size) == child.size
                    else:
                        right = int(size) == child.size and int(total, 16) == child.sum
                    if child is not self.model.root.entries.get("ballast") and not right:
                        raise Failure(f"{path}/{name} has other contents: {size} bytes, not {child.size}")

        one("", self.model.root, 2)
        if len(set(map(id, same.values()))) != len(same):
            raise Failure("a file's names have different inodes")
        for _, _, depth, _, leaf, index, segment in dirs.values():
            if segment:
                reached.depths.add(depth)
                reached.leaf_begins |= bool(leaf)
                reached.index_begins |= bool(index)
                reached.grown |= bool(leaf) and depth >= 2 and not self.reshaped

    # --- the walk ---

    def steps(self):
        """[(how often, step, whether it counts quotas)]"""
        found = [
            (14, self.by_library, False),
            (6, self.by_library_many, False),
            (5, self.by_library_remove, False),
            (6, self.by_space, False),
            (6, self.by_tree, False),
            (6, self.by_debugfs, False),
            (4, self.by_debugfs_trees, False),
            (10, self.by_e2fsck, True),
            (4, self.by_feature, False),
            (4, self.by_tune2fs, False),
            (4, self.by_resize2fs, False),
            (2, self.by_e2image, True),
            (2, self.by_undo, True),
            (1, self.look, True),
        ]
        if self.aimed:
            found += [(6, self.by_boundary, False), (8, self.by_reshape, False)]
        if "fuse2fs" in self.mounts and self.config.for_fuse2fs:
            found.append((5, self.by_fuse, False))
        if "kernel" in self.mounts:
            found.append((40, self.by_kernel, True))
        return found

    def run(self):
        """Returns None, or what is wrong; log and reached tell the rest."""
        shutil.copyfile(configs.template(self.config.name), self.image)
        self.model = learn(self.image)
        self.log = [f"seed {self.seed}, volume {self.config.name}"]
        try:
            for number in range(self.length):
                choices = self.steps()
                _, step, counts = self.rng.choices(choices, [c[0] for c in choices])[0]
                self.log.append("")
                mark = len(self.log)
                if self.keep:
                    shutil.copyfile(self.image, f"{self.keep}/seed{self.seed}-before-step{number + 1}.img")
                self.reached.who[step.__name__] = self.reached.who.get(step.__name__, 0) + 1
                try:
                    step()
                    self.check(counts or not self.config.quota)
                finally:
                    text = "; ".join(self.log[mark:])
                    self.log[mark - 1 :] = [f"  step {number + 1}, {step.__name__[3:]}: {text}"]
        except Failure as err:
            return str(err)
        finally:
            if self.keep and self.image.exists():
                shutil.copyfile(self.image, f"{self.keep}/seed{self.seed}-end.img")
            for left in self.folder.glob(f"walk-{self.seed}.*"):
                if left.is_dir():
                    left.rmdir()
                else:
                    left.unlink()
        return None
