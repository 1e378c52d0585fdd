# SPDX-License-Identifier: GPL-2.0-only
"""Read the pages of the kernel's trace ring buffer (per_cpu/cpuN/trace_pipe_raw).

As text, each event costs an emulated CPU more than the request it tells of:
a quarter of the time that tar takes. The layout is that of the kernel's
tracefs ABI, which `events/header_page`, `events/header_event` and each event's
`format` file describe.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

PAGE = 4096  # of the guest: an x86 machine's
PAGE_HEAD = struct.Struct("<QQ")  # time stamp in ns, bytes in use and two flags
MISSED = 1 << 31  # events were lost before this page
SIZE_MASK = (1 << 20) - 1
DELTA_BITS = 27
DATA_MAX, PADDING, EXTEND, STAMP = 28, 29, 30, 31
FIELD = re.compile(r"field:[^;]*?\b(\w+)(?:\[\d*\])?;\s*offset:(\d+);\s*size:(\d+);")


class RingBufferError(Exception):
    """These are not the pages of a ring buffer, or some of them are missing."""


def fields_of(text: str) -> tuple[int, dict[str, tuple[int, int]]]:
    """The number of an event, and offset and size of its fields, from its `format` file."""
    number = re.search(r"^ID: (\d+)$", text, re.M)
    fields = {name: (int(offset), int(size)) for name, offset, size in FIELD.findall(text)}
    if not number or "common_type" not in fields:
        raise RingBufferError(f"not the format of an event: {text[:80]!r}")
    return int(number[1]), fields


def number(data: bytes, place: tuple[int, int]) -> int:
    offset, size = place
    return int.from_bytes(data[offset : offset + size], "little")


def string(data: bytes, place: tuple[int, int]) -> str:
    offset, size = place
    return data[offset : offset + size].split(b"\0")[0].decode(errors="replace")


def page_events(page: bytes) -> Iterator[tuple[int, bytes]]:
    """Time in ns and contents of each event of one page."""
    stamp, commit = PAGE_HEAD.unpack_from(page)
    if commit & MISSED:
        raise RingBufferError("events were lost")
    at, end = PAGE_HEAD.size, PAGE_HEAD.size + (commit & SIZE_MASK)
    if end > len(page):
        raise RingBufferError("a page of the buffer is torn")
    while at + 4 <= end:
        (head,) = struct.unpack_from("<I", page, at)
        kind, delta = head & 31, head >> 5
        extra = struct.unpack_from("<I", page, at + 4)[0] if at + 8 <= end else 0
        if kind == PADDING:
            if not delta:
                return  # the rest of the page is empty
            at += 4 + extra
            stamp += delta
        elif kind == EXTEND:
            stamp += (extra << DELTA_BITS) + delta
            at += 8
        elif kind == STAMP:
            # The upper five bits are those of the page's own stamp.
            stamp = (stamp & ~((1 << 59) - 1)) | (extra << DELTA_BITS) + delta
            at += 8
        else:
            stamp += delta
            size, begin = (4 * kind, at + 4) if kind else (extra - 4, at + 8)
            if size < 0 or begin + size > end:
                raise RingBufferError("an event leaves its page")
            yield stamp, page[begin : begin + size]
            at = begin + size


def events(data: bytes) -> list[tuple[int, bytes]]:
    """The events of many pages, in order of time."""
    if len(data) % PAGE:
        raise RingBufferError(f"{len(data)} bytes are not whole pages")
    found = [e for at in range(0, len(data), PAGE) for e in page_events(data[at : at + PAGE])]
    found.sort(key=lambda event: event[0])
    return found
