# SPDX-License-Identifier: GPL-2.0-only
"""Control groups in the guest."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

from kt.guest import Guest

WHERE = pathlib.Path("/tmp/itree-cgroups")  # /sys/fs/cgroup may be mounted already


@contextlib.contextmanager
def control_groups(controller: str) -> Iterator[pathlib.Path]:
    """Context: the directory in which groups with this controller can be made."""
    WHERE.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup2", "none", WHERE], check=True)
    try:
        (WHERE / "cgroup.subtree_control").write_text(f"+{controller}")
        yield WHERE
    finally:
        time.sleep(0.2)
        subprocess.run(["umount", WHERE], check=False)


def small_group(group: pathlib.Path, mebibytes: int) -> None:
    """Make a group with this limit of memory."""
    group.mkdir()
    (group / "memory.max").write_text(str(mebibytes << 20))
    with contextlib.suppress(OSError):  # no swap in this kernel
        (group / "memory.swap.max").write_text("0")


def join(group: pathlib.Path) -> None:
    """Move this process into the group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def want_alive(g: Guest, group: pathlib.Path) -> None:
    """Check that the OOM killer killed no process in the group."""
    events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
    g.equal(events["oom_kill"], "0", f"{group.name}: killed for want of memory")
