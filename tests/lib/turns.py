# SPDX-License-Identifier: GPL-2.0-only
"""Which part of the cases `make test` runs where all would take too long: each change of kernel/ takes another."""

import functools
import pathlib
import zlib

import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def turn(parts):
    """Return a number below parts that changes with the files in kernel/."""
    inputs = tb.Inputs("bases")
    for rel in tb.files_below(REPO / "kernel"):
        inputs.file(rel, REPO / "kernel" / rel)
    return int(inputs.key(), 16) % parts


def is_turn_of(name, parts):
    """Is this case in the part that is run now? Its name says in which part it is."""
    return zlib.crc32(name.encode()) % parts == turn(parts)
