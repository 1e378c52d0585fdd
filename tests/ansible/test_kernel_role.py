# SPDX-License-Identifier: GPL-2.0-only
"""The roles kernel and rollback on a Debian 12 root: real packages, hooks and GRUB tools, simulated starts.

With ITREE_FULL=1, since the root takes minutes to make. Whole machines that start: test_kernel_machines.py.
"""

import chroothost
import machine_packages
import pytest
from conftest import full

pytestmark = full
BROKEN = machine_packages.BROKEN
GUARD = "/etc/systemd/system/itree-kernel-guard.service"


@pytest.fixture
def host(tmp_path):
    made = chroothost.Host(tmp_path)
    yield made
    made.close()


def role(collection, host, name, *options, **variables):
    defaults = {"kernel": {"itree_kernel_reboot": True}, "rollback": {"itree_rollback_volumes": []}}[name]
    variables = {"ansible_connection": "simulated", **defaults, **variables}
    return collection.role(name, *options, before=host.before, **variables)


def default_of(host):
    """What the next start would boot, asked of GRUB's own files by a simulated start."""
    host.run("/usr/sbin/shutdown")
    return host.read("release")


def test_refused(collection, host, repos):
    """No leave to reboot: nothing is installed or chosen."""
    host.repository(repos[1]["good"][0])
    look = ("sh", "-c", "ls /boot; cat /boot/grub/grub.cfg; ls /etc/default/grub.d 2>/dev/null || true")
    before = host.run(*look)
    played = role(collection, host, "kernel", itree_kernel_reboot=False)
    played.bad("does not know itrees", "itree_kernel_reboot: true", "Nothing was changed")
    played = role(collection, host, "kernel", "--check").good()
    assert "would be rebooted" in " ".join(played.text.split())
    assert host.run(*look) == before
    assert host.read("boots") == ""


def test_there_and_back(collection, host, repos):
    """A kernel that comes up becomes the default, a second run changes nothing, and rollback takes it all away."""
    release, stock = repos[0], host.read("release")
    host.put(f"{chroothost.STATE}/know", release)
    host.repository(repos[1]["good"][0])
    pattern = {"itree_kernel_pattern": f"^{release}$"}
    role(collection, host, "kernel", **pattern).good()
    assert host.read("boots").split() == [release]
    assert host.run("sh", "-c", f"test -e {GUARD} || echo gone") == "gone\n"
    assert role(collection, host, "kernel", **pattern).good().changed() == {"here": 0}
    assert default_of(host) == release
    # Cut off after the start, the guard still there: the next run finishes.
    host.put(GUARD, "[Service]\n")
    host.run("grub-set-default", "0")
    assert role(collection, host, "kernel", **pattern).good().changed()["here"] > 0
    assert host.run("sh", "-c", f"test -e {GUARD} || echo gone") == "gone\n"
    assert default_of(host) == release

    back = {"itree_rollback_kernel_pattern": f"^{release}$|itree", "itree_rollback_reboot": True}
    played = role(collection, host, "rollback", **{**back, "itree_rollback_reboot": False}).good()
    assert f"runs {release} until its next reboot" in " ".join(played.text.split())
    assert release in host.run("ls", "/boot")
    role(collection, host, "rollback", **back).good()
    assert host.read("release") == stock and release not in host.run("ls", "/boot")
    images = host.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", "linux-image-*").splitlines()
    assert not [t for t in images if t.startswith("installed ") and "itree" in t], images
    assert "itree" not in host.run("ls", "/etc/default/grub.d") and default_of(host) == stock
    assert role(collection, host, "rollback", **back).good().changed() == {"here": 0}


def test_panics(collection, host, repos):
    """The new kernel panics: tried once, the old one runs and is the default, and the role says so."""
    stock = host.read("release")
    host.put(f"{chroothost.STATE}/panics", BROKEN)
    host.repository(repos[1]["broken"][0])
    played = role(collection, host, "kernel")
    played.bad(f"was to boot {BROKEN} and runs {stock}", f"runs {stock} again, its default")
    assert host.read("boots").split() == [BROKEN, stock]
    assert host.run("sh", "-c", f"test -e {GUARD} || echo gone") == "gone\n"
    assert default_of(host) == stock


def test_knows_no_itrees(collection, host, repos):
    """The new kernel comes up and is none of ours: the role itself goes back."""
    stock = host.read("release")
    host.repository(repos[1]["broken"][0])
    role(collection, host, "kernel").bad(f"runs {BROKEN}, which does not know itrees", f"runs {stock} again")
    assert host.read("boots").split() == [BROKEN, stock] and default_of(host) == stock
