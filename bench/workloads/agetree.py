#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Unpack a tar stream the way a source tree ages: each step deletes a random file with a probability, else creates.

What was deleted is created again later, so the tree ends up with the files
of the archive, on inodes and blocks that others had before. Regular files
only; links are left out.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tarfile
from collections import deque
from pathlib import Path


class Tree:
    def __init__(self, top: Path, share: float, seed: int):
        self.top = top
        self.share = share
        self.random = random.Random(seed)
        self.live: list[str] = []
        self.gone: deque[tuple[str, bytes]] = deque()

    def create(self, name: str, data: bytes) -> None:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.live.append(name)

    def delete(self) -> None:
        at = self.random.randrange(len(self.live))
        self.live[at], self.live[-1] = self.live[-1], self.live[at]
        name = self.live.pop()
        path = self.top / name
        self.gone.append((name, path.read_bytes()))
        path.unlink()

    def age(self) -> None:
        """Deletes that come before the next create."""
        while self.live and self.random.random() < self.share:
            self.delete()

    def fill(self, files) -> None:
        for name, data in files:
            self.age()
            # Old and new take turns while there are both.
            if self.gone and self.random.random() < self.share:
                self.create(*self.gone.popleft())
                self.age()
            self.create(name, data)
        while self.gone:
            # Deleting comes to an end by itself: fewer than are created.
            self.age()
            self.create(*self.gone.popleft())


def members(stream, most: int):
    """(name, data) of the regular files of a tar stream, without its first folder, at most so many."""
    count = 0
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            if not member.isreg():
                continue
            name = member.name.split("/", 1)[-1]
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{member.name} leads out of the archive")
            yield name, archive.extractfile(member).read()
            count += 1
            if count == most:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="created")
    parser.add_argument("--files", type=int, default=0, help="unpack so many (default: all)")
    parser.add_argument("--share", type=float, default=0.3, help="of deletes, 0 to 0.45 (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not 0 <= args.share <= 0.45:
        parser.error("--share is from 0 to 0.45")
    tree = Tree(args.directory, args.share, args.seed)
    tree.fill(members(sys.stdin.buffer, args.files))
    os.sync()
    print(len(tree.live))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, tarfile.TarError) as error:
        print(f"agetree: {error}", file=sys.stderr)
        sys.exit(1)
