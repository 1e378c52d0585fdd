# SPDX-License-Identifier: GPL-2.0-only
"""What an admin does with the repository: install, upgrade, swap, go back."""

import re

import sources
from conftest import AGAIN, PATCHED

STOCK = ["e2fsprogs-1.47.0-1", "e2fsprogs-libs-1.47.0-1", "test-base-1-1"]
LOCK = sources.read_lock()
VERSION = LOCK["e2fsprogs"].version


def ours(release):
    """All that itree-storage-server brings in; what is built only once stays at 0.1."""
    patched = [f"{n}-{LOCK[n.removesuffix('-itree')].version}-{release if n in AGAIN else '0.1'}" for n in PATCHED]
    return sorted([
        f"e2fsprogs-itree-{VERSION}-{release}", f"e2fsprogs-itree-libs-{VERSION}-{release}", *patched,
        f"diskorder-1-{release}", f"itree-release-1-{release}", f"itree-storage-server-1-{release}", "test-base-1-1",
    ])  # fmt: skip


# A directory with a tree, made and checked by the installed programs.
USE = """
mkdir -p /tmp 2>/dev/null || :
rm -f /tmp/image
mke2fs -q -F -t ext4 {options} /tmp/image 16M
e2fsck -fn /tmp/image
"""


def install(root):
    """As README says: swap the tools, then the rest."""
    root.dnf("swap", "--allowerasing", "e2fsprogs", "e2fsprogs-itree")
    return root.dnf("install", "itree-storage-server")


def clean(root):
    """No scriptlet failed."""
    assert "scriptlet failed" not in root.output and "Error in" not in root.output, root.output


def test_install_runs_verifies_and_says_what_next(root):
    assert root.installed() == STOCK
    output = install(root)
    assert root.installed() == ours("0.1")
    assert "no file system has been changed" in output
    assert root.rpm("-V", *(n for n in root.installed() if not n.startswith("test-base"))) == ""
    (root.path / "tmp").mkdir(exist_ok=True)
    root.chroot(USE.format(options="-O itree"))
    clean(root)
    readme = root.rpm("-qd", "itree-storage-server").split()
    assert [p for p in readme if p.endswith("README.itree") and (root.path / p[1:]).is_file()]


def test_install_in_one_step(root):
    """Without the swap: dnf says what is in the way, and does it when allowed to."""
    before = root.files()
    output = root.dnf("install", "itree-storage-server", ok=(1,))
    assert "conflict" in output and "--allowerasing" in output
    assert root.installed() == STOCK and root.files() == before
    root.dnf("install", "--allowerasing", "itree-storage-server")
    assert root.installed() == ours("0.1")


# By the distribution's tar, which does not know --sort=disk, and by ours.
BESIDE = """
mkdir -p /tmp/in/sub
cd /tmp/in
seq -f a-name-%06g 300 | xargs touch
echo text >sub/text
if tar --sort=disk -cf /tmp/no.tar . 2>/tmp/said; then exit 9; fi
diskorder tar --sort=disk -cf /tmp/yes.tar .
tar -tf /tmp/yes.tar
diskorder cat sub/text
diskorder rsync -a /tmp/in/ /tmp/out
ls -R /tmp/in >/tmp/one
cd /tmp/out && ls -R /tmp/out >/tmp/two
"""


def test_patched_tools_lie_beside_the_distributions(root):
    stock = root.chroot("tar --version; readlink -f /bin/tar")
    install(root)
    (root.path / "tmp").mkdir(exist_ok=True)
    output = root.chroot(BESIDE)
    assert "./sub/text" in output and "./a-name-000300" in output
    one, two = ((root.path / "tmp" / n).read_text() for n in ("one", "two"))
    assert one.replace("/tmp/in", "/tmp/out") == two and "a-name-000300" in two
    assert root.chroot("tar --version; readlink -f /bin/tar") == stock, "the distribution's tar is to stay"
    assert "(GNU tar) 1.35" in root.chroot("diskorder tar --version")
    root.dnf("remove", "tar-itree")
    assert "itree-storage-server-1-0.1" not in root.installed(), "it requires tar-itree"
    assert not (root.path / "usr" / "libexec" / "diskorder" / "bin" / "tar").exists()
    assert root.chroot("tar --version; readlink -f /bin/tar") == stock
    clean(root)


def test_a_host_that_has_e2scrub(root):
    """The swap takes the distribution's away, and says so; ours can be installed, and goes back the same way."""
    root.dnf("install", "lvm2")
    root.dnf("install", "e2scrub")
    output = root.dnf("swap", "--allowerasing", "e2fsprogs", "e2fsprogs-itree")
    assert re.search(r"^ e2scrub +\S+ +1\.47\.0-1", output, re.M), output
    assert not (root.path / "usr" / "sbin" / "e2scrub").exists()
    # lvm2 is there: the meta package brings it back.
    root.dnf("install", "itree-storage-server")
    assert f"e2scrub-itree-{VERSION}-0.1" in root.installed()
    assert root.rpm("-V", "e2scrub-itree") == ""
    assert "Usage: " in root.chroot("e2scrub -h 2>&1 || :")
    units = root.rpm("-ql", "e2scrub-itree").split()
    assert "/usr/lib/systemd/system/e2scrub_all.timer" in units
    # Configuration, libexec: everything a unit calls is in the package.
    (fail,) = (root.path / "usr/lib/systemd/system/e2scrub_fail@.service").read_text().split("ExecStart=")[1:]
    assert fail.split()[0] in units, fail
    root.dnf("remove", "itree-storage-server")
    root.dnf("swap", "--allowerasing", "e2fsprogs-itree", "e2fsprogs")
    root.dnf("install", "e2scrub")
    assert "e2scrub-1.47.0-1" in root.installed() and not [n for n in root.installed() if "e2fsprogs-itree" in n]
    clean(root)


def test_the_repository_alone_replaces_nothing(root):
    root.dnf("upgrade")
    assert root.installed() == STOCK


def test_upgrade_downgrade_remove_and_swap_back(root, old, new):
    before = root.files()
    install(root)
    (root.path / "etc" / "mke2fs.conf").write_text("[defaults]\n\tblocksize = 4096\n# the admin's\n")
    root.repos(itree=new / "repo")
    root.dnf("upgrade")
    assert root.installed() == ours("0.2")
    assert "the admin's" in (root.path / "etc" / "mke2fs.conf").read_text(), "configuration was overwritten"
    root.repos(itree=old / "repo")
    again = [n for n in AGAIN if n != "e2fsprogs-itree"]
    root.dnf("downgrade", "e2fsprogs-itree", "e2fsprogs-itree-libs", *again)
    assert root.installed() == ours("0.1")
    root.dnf("remove", "itree-storage-server", "itree-release")
    root.dnf("swap", "--allowerasing", "e2fsprogs-itree", "e2fsprogs")
    assert root.installed() == STOCK
    assert root.rpm("-V", "e2fsprogs-libs") == ""
    after = root.files()
    (root.path / "tmp").mkdir(exist_ok=True)
    root.chroot(USE.format(options=""))
    clean(root)
    left = {p for p in after if p not in before}
    assert not {p for p in before if p not in after}
    # What the admin changed is kept beside.
    assert all("mke2fs.conf" in p or after[p] is False for p in left), left
