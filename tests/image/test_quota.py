# SPDX-License-Identifier: GPL-2.0-only
"""A host's share of the volume, enforced by ext4: in a guest, for the kernel of this host may have no quotas."""

import json
import os
import sys

import pytest
import quotas
import vm
from conftest import REPO
from itree_backup import config
from itree_backup.errors import BackupError

KERNEL = REPO / "build" / "kernel-uml-fast" / "linux"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{scenario: traceback or nothing} of quotas.py."""
    if not KERNEL.exists():
        pytest.skip(f"{KERNEL} is missing: run `make kernel-uml-fast`")
    top = tmp_path_factory.mktemp("quotas")
    with open(top / "disk.img", "wb") as handle:
        handle.truncate(1 << 30)
    argv = [sys.executable, "-B", quotas.__file__, top]
    res = vm.run(argv, kernel=KERNEL, disks=[top / "disk.img"], shares=[top], timeout=1800, cwd=str(top),
                 env={"ITREE_FULL": os.environ.get("ITREE_FULL", "")})  # fmt: skip
    assert res.ok and not res.problems, f"{res.stdout}\n{res.stderr}\n{res.explain()}"
    return json.loads((top / "results.json").read_text())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", quotas.SCENARIOS)
def test_in_a_guest(results, name):
    assert not results[name], results[name]


@pytest.fixture
def parse(tmp_path):
    """A function that gives the limits of a host file with a section [quota]."""
    (tmp_path / "itree-backup.conf").write_text("[quota]\nsize = 2T\ninodes = 5000000\n")
    base = config.settings(tmp_path)

    def limits(text):
        one = config.parse_host(base, "mx1", tmp_path / "mx1.conf", f"[host]\npaths = /etc\n[quota]\n{text}\n")
        return one.quota.size, one.quota.inodes

    return limits


def test_sizes(parse):
    assert parse("") == (2 << 40, 5000000)
    assert parse("size = 500G") == (500 << 30, 5000000)
    assert parse("size = 0\ninodes = 0") == (0, 0)
    assert parse("size = 1048576")[0] == parse("size = 1024K")[0] == parse("size = 1M")[0] == 1 << 20


@pytest.mark.parametrize("line", ["size = 10 GB", "size = -1", "size = 1.5T", "size = 100K", "inodes = 1M", "a = 1"])
def test_sizes_that_make_no_sense(parse, line):
    with pytest.raises(BackupError, match=r"\[quota\]"):
        parse(line)
