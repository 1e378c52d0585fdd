# SPDX-License-Identifier: GPL-2.0-only
"""The fuzzer of libext2fs: building it, running it, and e2fsck on what its inputs make of an image."""

from __future__ import annotations

import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

import bases
import check
import ondisk

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE / "data" / "corpus"
IMAGES = ("1k-free", "1k-scattered", "4k-nocsum")  # inputs name them by number
CFLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fno-omit-frame-pointer",
          "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined")  # fmt: skip


def build(root):
    """Path of the fuzzer, linked with the libraries that `e2fsprogs/build --fuzz` has put into root."""
    out = bases.KEEP / "fuzz_library"
    source = HERE / "fuzz_library.c"
    libs = [root / "lib" / "libext2fs.a", root / "lib" / "libcom_err.a"]
    if out.exists() and out.stat().st_mtime > max(p.stat().st_mtime for p in (source, *libs)):
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(f".{os.getpid()}")
    bases.call((0,), ["clang", *CFLAGS, f"-I{root / 'include'}", "-o", part, source, *libs, "-lpthread"])
    part.rename(out)
    return out


def environ(**more):
    return {**os.environ, "ITREE_FUZZ_BASES": ":".join(str(bases.get(name)) for name in IMAGES), **more}


def inputs(folder):
    return sorted(p for p in folder.iterdir() if p.is_file())


def run(fuzzer, args, **more):
    """Run the fuzzer; returns (exit code, what it said)."""
    res = subprocess.run([str(a) for a in (fuzzer, *args)], env=environ(**more), stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
    return res.returncode, res.stdout.decode(errors="replace")


class Damage:
    """What an input changes in an image, as check.Checker wants to know it."""

    def __init__(self, changes):
        self.kinds, self.edits = ["fuzz"], []
        data = changes.read_bytes()
        self.base = IMAGES[struct.unpack_from("<I", data)[0]]
        self.hit_blocks, self.hit_inodes = set(), set()
        with ondisk.Disk(bases.get(self.base), write=False) as disk:
            table = {}
            for ino in range(1, disk.inodes + 1):
                table.setdefault(disk.inode_at(ino) // 1024, []).append(ino)
            for at in range(4, len(data), 1028):
                number = struct.unpack_from("<I", data, at)[0]
                new = data[at + 4 : at + 1028]
                old = disk.get(number * 1024, 1024)
                if new == old:
                    continue
                self.edits.append(("put", number * 1024, new))
                if number not in table:
                    self.hit_blocks.add(number * 1024 // disk.bs)
                for ino in table.get(number, ()):
                    place = disk.inode_at(ino) % 1024
                    if new[place : place + disk.isize] != old[place : place + disk.isize]:
                        self.hit_inodes.add(ino)


def with_e2fsck(fuzzer, paths, checker):
    """Yields (path, Verdict) for each input: e2fsck on the image that it makes."""
    with tempfile.TemporaryDirectory() as folder:
        # Looking for leaks, libFuzzer may run an input a second time, and each run writes a file.
        code, out = run(fuzzer, ["-runs=1", "-detect_leaks=0", *paths], ITREE_FUZZ_WRITE=folder)
        if code or len(os.listdir(folder)) != len(paths):
            raise bases.BaseError(f"the fuzzer did not write the images of its inputs: exit code {code}\n{out[-2000:]}")
        for number, path in enumerate(paths):
            damage = Damage(pathlib.Path(folder) / str(number))
            image = checker.folder / "image"
            shutil.copyfile(bases.get(damage.base), image)
            with ondisk.Disk(image) as disk:
                for _, at, data in damage.edits:
                    disk.put(at, data)
            verdict = check.Verdict(0, damage.base, f"input {path}", damage.kinds, "passed")
            checker.repair_and_look(image, damage, verdict)
            yield path, verdict
