# SPDX-License-Identifier: GPL-2.0-only
"""The role kernel on a host with Secure Boot: this one under overlays, with a stand-in of its firmware and of grubby.

What the variables say: test_boot.py.
"""

import shutil

import pytest
import repositories
from conftest import full

KERNEL = repositories.NAME
FIRMWARE = """
mount -t tmpfs itree-test /sys/firmware
mkdir -p /sys/firmware/efi/efivars
cd /sys/firmware/efi/efivars
{}
cd /
exec "$@"
"""
VARIABLE = "printf '\\006\\000\\000\\000\\00{}' >SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# The kernel that runs is the default and has an entry; GRUB can write to where its environment lies.
GRUBBY = """#!/bin/sh
case "$1" in
--info=ALL) printf 'index=0\\nkernel="/boot/vmlinuz-%s"\\nid="this"\\n' "$(uname -r)" ;;
--default-kernel) echo "/boot/vmlinuz-$(uname -r)" ;;
*) echo "$*" >>/etc/itree-test-grubby ;;
esac
"""
PROBE = """#!/bin/sh
case "$1" in
*=fs) echo ext2 ;;
esac
"""


@pytest.fixture
def host(sandbox, tmp_path):
    """The sandbox with a boot loader that can boot once, and a package that stands for the kernel."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    repo, _key = repositories.apt(tmp_path / "repo")
    sandbox.run("sh", "-c", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*")
    sandbox.put("/etc/apt/apt.conf.d/99test", 'APT::Sandbox::User "root";\n')
    sandbox.put("/etc/apt/sources.list.d/test.list", f"deb [trusted=yes] file:{repo} ./\n")
    sandbox.put("/usr/sbin/grubby", GRUBBY, 0o755)
    for name, text in (("grub2-reboot", GRUBBY), ("grub2-probe", PROBE)):
        sandbox.put(f"/usr/sbin/{name}", text, 0o755)
    sandbox.run("apt-get", "-q", "update")
    return sandbox


def play(collection, host, variable, *options, **variables):
    # With itree_kernel_update it does not matter what this host's kernel knows.
    variables = {"itree_kernel_apt": [KERNEL], "itree_kernel_reboot": True, "itree_kernel_update": True, **variables}
    before = (*host.before, "sh", "-ec", FIRMWARE.format(variable), "sh")
    return collection.role("kernel", *options, before=before, **variables)


@pytest.mark.parametrize("options", ((), pytest.param(("--check",), marks=full)), ids=("done", "check"))
def test_refused(collection, host, options):
    """Nothing is installed or chosen, and the message says where, why, and what to do."""
    before = host.changes()
    played = play(collection, host, VARIABLE.format(1), *options)
    played.bad("here has Secure Boot on", "mokutil --import", "itree_kernel_signed: true", "Nothing was changed")
    assert played.changed() == {"here": 0} and host.changes() == before
    host.run("dpkg-query", "-W", KERNEL, ok=(1,))


@full
def test_not_known(collection, host):
    played = play(collection, host, ":", "--check")
    played.bad("cannot be read from /sys/firmware/efi/efivars", "efivarfs", "Nothing was changed")
    assert played.changed() == {"here": 0}


@pytest.mark.parametrize(
    ("variable", "signed"), ((VARIABLE.format(1), True), (VARIABLE.format(0), False)), ids=("signed", "off")
)
def test_goes_on(collection, host, variable, signed):
    """Up to where it would install and reboot."""
    played = play(collection, host, variable, "--check", itree_kernel_signed=signed).good()
    assert played.changed() == {"here": 1}
    assert "would be rebooted" in " ".join(played.text.split())
