# SPDX-License-Identifier: GPL-2.0-only
"""The role packages and what itree-storage-server recommends: all of it by name, and never the kernel.

With apt: test_host_roles.py.
"""

import re
import shutil

import pytest
import repositories
from conftest import REPO
from test_rollback import dnf_host

SPEC = REPO / "packaging" / "rpm" / "itree-storage-server.spec.in"
KERNEL = "kernel-itree"


def relations():
    """(Lines of relations, names required, names recommended) of itree-storage-server as it is packed."""
    lines = re.findall(r"^(?:Requires|Recommends):.*$", SPEC.read_text(), re.M)
    words = [re.match(r"(\w+):\s+\(?([\w-]+)", line).groups() for line in lines]
    return lines, *([name for kind, name in words if kind == which] for which in ("Requires", "Recommends"))


def test_dnf(collection, sandbox, tmp_path):
    """The distribution's e2fsprogs swapped for ours; no kernel; e2scrub-itree on a host that has lvm2."""
    if not shutil.which("dnf"):
        pytest.skip("no dnf on this host")
    lines, required, recommended = relations()
    assert KERNEL in recommended
    packages = {name: [] for name in ("test-base", "e2fsprogs", "lvm2", *required, *recommended)}
    packages["itree-storage-server"] = lines
    packages["e2fsprogs-itree"] = ["Provides: e2fsprogs = 2", "Conflicts: e2fsprogs"]
    dnf_host(sandbox, repositories.dnf_relations(tmp_path / "packages", packages))
    # The role asks it at the end; on these hosts no package has it.
    sandbox.put("/usr/sbin/e4itree", "#!/bin/sh\necho e4itree\n", 0o755)

    def play(*options):
        played = collection.role("packages", *options, before=sandbox.before).good()
        return played.changed()["here"], set(sandbox.run("rpm", "-qa", "--qf", "%{NAME}\n").split())

    before = {"test-base", "e2fsprogs"}
    assert play("--check") == (1, before)
    ours = {"itree-storage-server", *required, *recommended} - {KERNEL}
    assert play() == (1, {"test-base", *ours} - {"e2scrub-itree"})
    sandbox.run("dnf", "-qy", "--setopt=install_weak_deps=False", "install", "lvm2")
    assert play() == (1, {"test-base", "lvm2", *ours})
    assert play()[0] == 0
    # Left to itself dnf would have brought it.
    sandbox.run("dnf", "-qy", "remove", "itree-storage-server")
    sandbox.run("dnf", "-qy", "install", "itree-storage-server")
    sandbox.run("rpm", "-q", KERNEL)
