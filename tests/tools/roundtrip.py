#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Copies trees from one directory to another with each of our tools, cold, and compares them.

roundtrip.py SOURCE TARGET FILES [TOOL...]; so many files are in one of the directories. Without TOOL: all.

For test_file_systems.py, which runs it on the host and in a guest. Says what
came out different and ends with 1 then, else it prints the number of copies
that were compared.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("tools", "lib")]
from conftest import built, contents, forget, make_many, make_tree  # noqa: E402

TAR_EXTRACT = ["/usr/bin/tar", "--xattrs", "-xpf", "{archive}", "-C", "{out}"]
# Each a row of commands. cp and rsync make {out}/top themselves.
TOOLS = {
    **{
        f"tar --sort={order}": [
            ["tar", f"--sort={order}", "--xattrs", "-Scf", "{archive}", "-C", "{base}", "top"],
            TAR_EXTRACT,
        ]
        for order in ("auto", "disk")
    },
    "rsync": [["rsync", "-aHSX", "{base}/top/", "{out}/top/"]],
    "rsync, up to date": [["rsync", "-aHSX", "{base}/top/", "{out}/top/"]] * 2,
    "cp": [["cp", "-a", "{base}/top", "{out}/top"]],
}


def program(word):
    return str(built(f"bin/{word}")) if word in ("tar", "rsync", "cp") else word


def make(base, files):
    """Both trees below one top, and a hard link from one to the other."""
    top = base / "top"
    top.mkdir()
    many, tree = make_many(top / "many", files), make_tree(top / "tree")
    first = sorted(os.listdir(many))[0]
    os.link(many / first, top / "linked")
    for path in (many, tree, top):
        os.utime(path, ns=(10**18, 10**18))
    return top


def cold(top):
    """Nothing of it in memory, names and inodes included."""
    forget(top)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def differences(want, got):
    names = sorted(name for name in want[0].keys() | got[0].keys() if want[0].get(name) != got[0].get(name))
    lines = [f"{name}: {want[0].get(name)} became {got[0].get(name)}" for name in names[:5]]
    if want[1] != got[1]:
        lines.append(f"hard links: {want[1]} became {got[1]}")
    return lines


def main():
    source, target = Path(sys.argv[1]) / "source", Path(sys.argv[2]) / "target"
    files, tools, wrong = int(sys.argv[3]), sys.argv[4:] or list(TOOLS), []
    source.mkdir()
    target.mkdir()
    top = make(source, files)
    want = contents(top)
    assert len(want[0]) > files + 800 and len(want[1]) == 2
    for name in tools:
        out = target / "out"
        out.mkdir()
        places = {"base": str(source), "out": str(out), "archive": str(target / "archive.tar")}
        for command in TOOLS[name]:
            cold(top)
            subprocess.run([program(command[0]), *(w.format(**places) for w in command[1:])], check=True)
        wrong += [f"{name}: {line}" for line in differences(want, contents(out / "top"))]
        if (out / "top" / "tree" / "holes").stat().st_blocks >= 9 << 10:
            wrong.append(f"{name}: the holes of a file became data")
        for folder, _, _ in os.walk(out):
            os.chmod(folder, 0o755)
        shutil.rmtree(out)
    if contents(top) != want:
        wrong.append("the source is not what it was")
    print("\n".join(wrong) or f"{len(tools)} copies of {len(want[0])} files equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
