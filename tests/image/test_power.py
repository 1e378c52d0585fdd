# SPDX-License-Identifier: GPL-2.0-only
"""Power cuts in the midst of backups, on ext4 with itrees in the kernel under test.

The machine resets itself at a random moment: what was not written out is gone.
power.py is what happens between two cuts.
"""

import os
import pathlib
import random

import pytest
import uml
import vm
from conftest import REPO, run

# ITREE_KERNEL=build/kernel-uml/linux: under KASAN and lockdep, and without emulation.
KERNEL = pathlib.Path(os.environ.get("ITREE_KERNEL") or vm.DEFAULT_KERNEL).absolute()

SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"
CUTS = int(os.environ.get("ITREE_CUTS", "20"))

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="boots a machine 42 times: set ITREE_FULL=1"),
    pytest.mark.timeout(4 * 3600),
]


@pytest.mark.parametrize("number", [1, 2], ids=["backup", "sync"])
def test_power_cuts(tmp_path, number):
    """number: of disks; with two it is the copy from one to the other that is cut off."""
    disks, share = [tmp_path / f"disk{n}.img" for n in range(number)], tmp_path / "share"
    share.mkdir()
    for disk in disks:
        with open(disk, "wb") as handle:
            handle.truncate(512 << 20)
        run(SBIN / "mke2fs", "-q", "-F", "-t", "ext4", "-T", "backup", disk)
    devices = [f"/dev/{uml.disk_name(n) if uml.is_uml(KERNEL) else f'vd{chr(97 + n)}'}" for n in range(number)]
    chance, phases, lefts = random.Random(int(os.environ.get("ITREE_SEED", "1"))), [], []
    for turn in range(CUTS + 1):
        # After the run has begun, up to a bit more than it takes.
        moment = round(chance.uniform(0, 1.1), 2) if turn < CUTS else -1
        argv = ["/usr/bin/python3", "-B", pathlib.Path(__file__).parent / "power.py", share, turn, moment,
                *devices]  # fmt: skip
        res = vm.run(argv, kernel=KERNEL, disks=disks, shares=[share], timeout=1800, cwd=str(share))
        context = f"turn {turn}, cut at {moment} of a run\n{res.stdout}\n{res.explain()}"
        assert not res.problems and not res.timed_out, context
        # With a cut the machine ends before the command does.
        assert res.exit_code == (0 if turn == CUTS else None), context
        lefts.append((share / "left").read_text())
        if turn < CUTS:
            phase, seconds = (share / "phase").read_text().split("\n")
            phases.append(phase)
            print(f"turn {turn}: {lefts[-1]} interrupted runs found; cut after {seconds} s: {phase}", flush=True)
    # Cuts that all came too early or too late would prove nothing.
    assert sum(p != "ended" for p in phases) >= CUTS // 3, phases
    for disk in disks:
        code, output = run(SBIN / "e2fsck", "-fn", disk, ok=None)
        assert code == 0, output
