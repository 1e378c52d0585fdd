# SPDX-License-Identifier: GPL-2.0-only
"""The roles kernel and rollback with the module ext4itree, on this host under overlays.

The packages are stand-ins: theirs writes what DKMS would, an entry of modules.dep. The real ones: tests/packages.
"""

import os
import shutil

import pytest
import repositories
from conftest import full
from test_rollback import SHIM, apt_only
from test_secure_boot import FIRMWARE, VARIABLE

MODULE, RELEASE = "ext4itree-dkms", os.uname().release
HEADERS = f"linux-headers-{RELEASE}"
PACKAGES = {MODULE: ("1", f"Recommends: {HEADERS}-meta\n"), HEADERS: ("1", ""), f"{HEADERS}-meta": ("1", "")}
DEP = f"/usr/lib/modules/{RELEASE}/modules.dep"
# DKMS needs the headers; the file stands for a kernel of a series that the module does not have.
POSTINST = f"""#!/bin/sh
[ "$1" = configure ] && [ -e /lib/modules/{RELEASE}/build/Makefile ] && [ ! -e /etc/itree-test-series ] || exit 0
echo 'updates/dkms/ext4itree.ko.xz:' >{DEP}
"""
PRERM = f"#!/bin/sh\nrm -f {DEP}\n"
MODPROBE = """#!/bin/sh
echo "$*" >>/etc/itree-test-modprobe
[ ! -e /etc/itree-test-key ] || { echo "modprobe: Key was rejected by service" >&2; exit 1; }
"""


@pytest.fixture
def host(sandbox, tmp_path):
    """The sandbox with a repository of the module, and without one for its kernel."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    contents = {MODULE: {"DEBIAN/postinst": POSTINST, "DEBIAN/prerm": PRERM},
                HEADERS: {f"usr/lib/modules/{RELEASE}/build/Makefile": "all:\n"}}  # fmt: skip
    apt_only(sandbox, repositories.apt_relations(tmp_path / "repo", PACKAGES, contents)[0])
    sandbox.run("rm", "-rf", f"/usr/lib/modules/{RELEASE}")
    sandbox.put("/usr/sbin/modprobe", MODPROBE, 0o755)
    sandbox.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    return sandbox


def installed(host):
    text = host.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *PACKAGES, ok=(0, 1))
    return {line.split()[1] for line in text.splitlines() if line.startswith("installed ")}


def role(collection, host, *options, firmware=None, **variables):
    before = (*host.before, "sh", "-ec", FIRMWARE.format(firmware), "sh") if firmware else host.before
    return collection.role("kernel", *options, before=before, itree_kernel_variant="module", **variables)


def test_there_and_back(collection, host):
    """Foretold, installed with the headers of the kernel, loaded, no second change, and taken away by rollback."""
    before = host.changes()
    assert role(collection, host, "--check").good().changed() == {"here": 1}
    assert installed(host) == set() and host.changes() == before
    role(collection, host).good()
    assert installed(host) == set(PACKAGES)
    assert host.run("cat", "/etc/itree-test-modprobe") == "ext4itree\n"
    assert role(collection, host).good().changed() == {"here": 0}
    back = {"itree_rollback_volumes": [], "itree_rollback_kernel": False}
    host.put("/etc/fstab", "LABEL=mail /srv/mail ext4itree nofail 0 2\n")
    played = collection.role("rollback", before=host.before, **back)
    played.bad("/etc/fstab mounts /srv/mail by the type ext4itree", "Nothing was changed")
    assert MODULE in installed(host)
    host.put("/etc/fstab", "LABEL=mail /srv/mail ext4 nofail 0 2\n")
    collection.role("rollback", before=host.before, **back).good()
    assert MODULE not in installed(host)
    assert collection.role("rollback", before=host.before, **back).good().changed() == {"here": 0}


@pytest.mark.parametrize("variable", [VARIABLE.format(1), pytest.param("true", marks=full)], ids=("on", "unknown"))
def test_secure_boot(collection, host, variable):
    """The kernel would not load a module with an unknown key: nothing is installed without itree_kernel_signed."""
    played = role(collection, host, firmware=variable)
    played.bad("dkms generate_mok", "mokutil --import", "itree_kernel_signed: true", "Nothing was changed")
    assert played.changed() == {"here": 0} and installed(host) == set()
    played = role(collection, host, "--check", firmware=variable, itree_kernel_signed=True).good()
    assert played.changed() == {"here": 1}


@pytest.mark.parametrize(("flag", "words"), [
    ("series", (f"there is no module for its kernel {RELEASE}", "dkms status", "No volume was changed")),
    ("key", (f"for {RELEASE} and does not load it", "Key was rejected by service", "No volume was changed")),
], ids=("not built", "not loaded"))  # fmt: skip
def test_fails(collection, host, flag, words):
    host.put(f"/etc/itree-test-{flag}", "")
    role(collection, host).bad(*words)


def test_not_required(collection, host):
    """Without itree_kernel_required the role only prints what is missing."""
    played = role(collection, host, itree_kernel_required=False).good()
    assert played.changed() == {"here": 0} and installed(host) == set()
    assert "install the module ext4itree first" in " ".join(played.text.split())


def test_gate_names_a_kernel_without_the_module(collection, host):
    """A kernel that waits for a reboot and lacks the module would start without its volumes."""
    host.put(DEP, "updates/dkms/ext4itree.ko.xz:\n")
    host.put(f"/usr/lib/modules/999.{RELEASE}/vmlinuz", "")
    words = "has no module ext4itree, and after a reboot the volumes of that type would not be mounted: install "
    words += f"linux-headers-999.{RELEASE}"
    collection.role("gate", before=host.before, itree_gate_kernel="fail").bad(words)
    host.put(f"/usr/lib/modules/999.{RELEASE}/modules.dep", "updates/dkms/ext4itree.ko.xz:\n")
    played = collection.role("gate", before=host.before, itree_gate_kernel="fail").bad("reboot to get its fixes")
    assert "no module ext4itree" not in " ".join(played.text.split())
