# SPDX-License-Identifier: GPL-2.0-only
"""A whole machine with firmware and GRUB, from the distribution's kernel to ours and back, by the roles.

As test_mail_machines.py; nothing but kernels is done here, for without KVM a module of Ansible takes up to a minute.
"""

import machine_packages
import pytest
from hostwork import MARKS, play, put_tree, roles, until

pytestmark = MARKS
GUARD = "itree-kernel-guard"


def variables(release, key):
    return {
        "itree_repo_url": "file:///srv/itree",
        "itree_repo_key": str(key),
        "itree_kernel_reboot": True,
        # The test kernel's release has no itree in it, the broken one's has.
        "itree_kernel_pattern": f"^{release}$|itree",
        "itree_kernel_panic": 5,
        "itree_kernel_guard": 3000,
        "itree_kernel_timeout": 3600,
        "itree_nfs_services": ["ssh"],
        "itree_nfs_ports": [22],
    }


@pytest.fixture
def stock(host):
    """The machine as its distribution made it; the kernel it runs."""
    one = host(data="64M")
    one.start()
    one.wait(1800)
    one.ssh("update-grub 2>/dev/null", timeout=1800)
    return one, one.ssh("uname -r").strip()


def roll(collection, one, given, *names):
    return play(collection, one, given, *roles(*names), book="nfs_hosts", group="nfs")


def reboot(one):
    """As somebody else would, later."""
    ask = "cat /proc/sys/kernel/random/boot_id"
    before = one.ssh(ask)
    one.ssh("systemctl reboot", ok=None)
    # While it is away, ssh says so in other lengths.
    until(lambda: len(now := one.ssh(ask, ok=None, timeout=90)) == len(before) and now != before, True, 3600)


def test_there_and_back_qemu(collection, repos, stock):
    """The kernel role reboots into ours and makes it the default; again: no change; the role rollback goes back."""
    (release, repo), (one, was) = repos, stock
    directory, key = repo["good"]
    put_tree(one, directory, "/srv/itree")
    given = variables(release, key)
    roll(collection, one, given, "repo", "kernel").good()
    assert one.ssh("uname -r").strip() == release
    assert GUARD not in one.ssh("ls /etc/systemd/system")
    assert roll(collection, one, given, "repo", "kernel").good().changed() == {"host1": 0}
    # The default, not once only.
    reboot(one)
    assert one.ssh("uname -r").strip() == release

    back = {
        "itree_gate_services": ["ssh"],
        "itree_rollback_volumes": [],
        "itree_rollback_reboot": True,
        "itree_rollback_timeout": 3600,
        "itree_rollback_kernel_pattern": given["itree_kernel_pattern"],
    }

    def roll_back():
        return play(collection, one, back, book="roll_back", group="itree")

    roll_back().good()
    assert one.ssh("uname -r").strip() == was
    assert roll_back().good().changed() == {"host1": 0}
    left = one.ssh(
        "dpkg-query -W -f '${Package} ' 'linux-image-*'; ls /boot /etc/apt/sources.list.d /etc/default/grub.d"
    )
    assert "itree" not in left and release not in left
    one.stop()


def test_panic_qemu(collection, repos, stock):
    """A kernel that panics is tried once; the host is back in the one before, its default, without anybody's help."""
    (release, repo), (one, was) = repos, stock
    directory, key = repo["broken"]
    put_tree(one, directory, "/srv/itree")
    given = variables(release, key)
    played = roll(collection, one, {**given, "itree_kernel_reboot": False}, "repo", "kernel")
    played.bad("does not know itrees", "itree_kernel_reboot: true", "Nothing was changed")
    assert machine_packages.BROKEN not in one.ssh("ls /boot")
    played = roll(collection, one, given, "repo", "kernel")
    played.bad(f"was to boot {machine_packages.BROKEN} and runs {was}", f"runs {was} again, its default")
    assert "Kernel panic" in one.console.read_text(errors="replace")
    assert one.ssh("uname -r").strip() == was
    assert GUARD not in one.ssh("ls /etc/systemd/system")
    one.stop()
