# SPDX-License-Identifier: GPL-2.0-only
"""A message delivered as a mail server does it."""

from __future__ import annotations

import os
import pathlib


def post(box: pathlib.Path, name: str, data: bytes) -> None:
    """Write to tmp, fsync, rename into new, fsync the directory; then it may be acknowledged. Raises OSError."""
    fd = os.open(box / "tmp" / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(box / "tmp" / name, box / "new" / name)
    fd = os.open(box / "new", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
