# SPDX-License-Identifier: GPL-2.0-only
"""EXT4_IOC_ITREE from Python; see kernel/fs/ext4/itree_ioctl.h."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import types

ARGS = struct.Struct("=IIIIQ3QIIQQQQIIIIIIQQIIII64s4Q")
FIELDS = (
    "version op flags max_diffs diffs r1 r2 from_hash state depth keys names missing extra nr_diffs dir_blocks blocks "
    "free leaves nodes leaf_slots logged rounds locked_us why_block block_size why next r5 r6 r7"
).split()
DIFF = struct.Struct("=IIII")
EXT4_IOC_ITREE = 3 << 30 | ARGS.size << 16 | ord("f") << 8 | 96
STAT, BUILD, DROP, CHECK, ON, OFF, PACK = range(7)
FORCE, VERIFY = 1, 2
HAS_TREE, BAD, CHANGED, POSSIBLE, MORE = 1, 2, 4, 8, 16
MISSING, EXTRA = 1, 2


class Answer(types.SimpleNamespace):
    """The fields without their prefix."""


def itree_fd(
    fd: int, op: int, flags: int = 0, diffs: int = 0, version: int = 1, from_hash: int = 0, reserved: int = 0
) -> Answer:
    """Call the ioctl; raise OSError. With diffs, the answer has found, a list of (inode, hash, what)."""
    room = ctypes.create_string_buffer(DIFF.size * max(diffs, 1))
    head = (version, op, flags, diffs, ctypes.addressof(room) if diffs else 0, reserved, 0, from_hash)
    raw = bytearray(ARGS.pack(*head, *[0] * 18, b"", *[0] * 4))
    try:
        fcntl.ioctl(fd, EXT4_IOC_ITREE, raw, True)
    except OSError as err:
        # ON gives its reason.
        err.why = ARGS.unpack(raw)[FIELDS.index("why")].rstrip(b"\0").decode()
        raise
    answer = Answer(**dict(zip(FIELDS, ARGS.unpack(raw), strict=True)))
    answer.why = answer.why.rstrip(b"\0").decode()
    answer.found = [DIFF.unpack_from(room, DIFF.size * i)[:3] for i in range(answer.nr_diffs)]
    return answer


def itree(path, op: int, flags: int = 0, **more) -> Answer:
    fd = os.open(path, os.O_RDONLY)
    try:
        return itree_fd(fd, op, flags, **more)
    finally:
        os.close(fd)


def errno_of(path, op: int, flags: int = 0, **more) -> int:
    """0 or the errno."""
    try:
        itree(path, op, flags, **more)
    except OSError as err:
        return err.errno
    return 0


def refused(path, op: int) -> OSError:
    """The error of a call that must fail; its `why` is the kernel's reason."""
    try:
        itree(path, op)
    except OSError as err:
        return err
    raise AssertionError(f"operation {op} on {path} did not fail")
