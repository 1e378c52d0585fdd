# SPDX-License-Identifier: GPL-2.0-only
"""Checks of an image on the host after the guest: the host's own kernel reads it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile

from kt.modes import SIZES


class Skip(Exception):
    """This host cannot run the check; the text says why."""


def sh(*argv, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(a) for a in argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


def host_has_itree() -> bool:
    return os.path.exists("/sys/fs/ext4/features/itree")


@contextlib.contextmanager
def loop_device(image: pathlib.Path):
    if os.geteuid():
        raise Skip("loop devices need root")
    res = sh("losetup", "--find", "--show", image)
    if res.returncode:
        raise Skip(f"no loop device: {res.stderr.strip()}")
    dev = res.stdout.strip()
    try:
        yield dev
    finally:
        sh("losetup", "-d", dev)


@contextlib.contextmanager
def mounted(image: pathlib.Path, options: str):
    with loop_device(image) as dev, tempfile.TemporaryDirectory(prefix="itree-kt-") as at:
        res = sh("mount", "-t", "ext4", "-o", options, dev, at)
        if res.returncode:
            raise AssertionError(f"the host cannot mount -o {options}: {res.stderr.strip()}")
        try:
            yield dev, pathlib.Path(at)
        finally:
            if sh("umount", at).returncode:
                sh("umount", "-l", at)


def _list(helper, *args) -> list[str]:
    res = sh(helper, *args)
    found = [x.partition(": ")[2] for x in res.stdout.splitlines() if x.startswith(("FAIL", "DIED"))]
    if res.returncode and not found:
        found.append(f"itree-t {args[0]}: exit code {res.returncode}")
    return found


def same_order_as_host(image: pathlib.Path, share: pathlib.Path, helper: pathlib.Path) -> list[str]:
    """Names, order and d_off dumped by the guest equal those from the host's kernel."""
    return _same_as_host(image, share, helper, 0)


def same_names_as_host(image: pathlib.Path, share: pathlib.Path, helper: pathlib.Path) -> list[str]:
    """The same, except for d_off."""
    return _same_as_host(image, share, helper, 1)


def _same_as_host(image: pathlib.Path, share: pathlib.Path, helper: pathlib.Path, column: int) -> list[str]:
    if host_has_itree():
        raise Skip("the host's own kernel knows the itree")
    fails = []
    with mounted(image, "ro") as (_, at):
        for name in SIZES:
            out = share / f"{name}.host"
            fails += _list(helper, "dump", "--dir", at / name, "--out", out)
            ours, theirs = (
                [line.split(" ", column)[column] for line in path.read_text().splitlines()]
                for path in (share / f"{name}.guest", out)
            )
            if ours != theirs:
                first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), -1)
                fails.append(
                    f"{name}: not as the host's kernel lists it, first at entry {first} "
                    f"of {len(ours)} and {len(theirs)}: {ours[first][:60]} | {theirs[first][:60]}"
                )
    return fails


def old_kernel_reads(image: pathlib.Path, share: pathlib.Path, helper: pathlib.Path) -> list[str]:
    """A read-only mount reads correctly; read-write is refused, at mount and at remount."""
    if host_has_itree():
        raise Skip("the host's own kernel knows the itree")
    fails = []
    with mounted(image, "ro") as (dev, at):
        for name in SIZES:
            fails += _list(helper, "list", "--dir", at / name, "--model", share / f"{name}.model")
            fails += _list(helper, "lookup", "--dir", at / name, "--model", share / f"{name}.model")
        res = sh("mount", "-o", "remount,rw", dev, at)
        if not res.returncode:
            fails.append("the old kernel remounts it read-write")
        with contextlib.suppress(OSError):
            os.mknod(at / "new")
            fails.append("the old kernel writes to it")
    with loop_device(image) as dev, tempfile.TemporaryDirectory(prefix="itree-kt-") as at:
        # -w: mount(8) does not fall back to read-only.
        res = sh("mount", "-w", "-t", "ext4", dev, at)
        if not res.returncode:
            fails.append("the old kernel mounts it read-write")
            sh("umount", at)
        elif not res.stderr.strip():
            fails.append("read-write is refused without a word")
    return fails


def old_kernel_replays(image: pathlib.Path, share: pathlib.Path, helper: pathlib.Path) -> list[str]:
    """A read-only mount replays the journal; e2fsck, which comes next, compares the trees with their directories."""
    if host_has_itree():
        raise Skip("the host's own kernel knows the itree")
    with mounted(image, "ro") as (_, at):
        models = [(at / f"d{i}", share / f"d.model.must.{i}") for i in range(2)]
        return sum((_list(helper, "list", "--dir", d, "--model", m, "--subset") for d, m in models), [])
