# SPDX-License-Identifier: GPL-2.0-only
"""What an admin does with the repository: install, upgrade, swap, go back."""


STOCK = ["e2fsprogs-1.47.0-1", "e2fsprogs-libs-1.47.0-1", "test-base-1-1"]
VERSION = "1.47.2"


def ours(release):
    return sorted([
        f"e2fsprogs-itree-{VERSION}-{release}", f"e2fsprogs-itree-libs-{VERSION}-{release}",
        f"itree-release-1-{release}", f"itree-storage-server-1-{release}", "test-base-1-1",
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
    assert "scriptlet failed" not in root.said and "Error in" not in root.said, root.said


def test_install_runs_verifies_and_says_what_next(root):
    assert root.installed() == STOCK
    said = install(root)
    assert root.installed() == ours("0.1")
    assert "no file system has been changed" in said
    assert root.rpm("-V", "e2fsprogs-itree", "e2fsprogs-itree-libs", "itree-release", "itree-storage-server") == ""
    (root.path / "tmp").mkdir(exist_ok=True)
    root.chroot(USE.format(options="-O itree"))
    clean(root)
    readme = root.rpm("-qd", "itree-storage-server").split()
    assert [p for p in readme if p.endswith("README.itree") and (root.path / p[1:]).is_file()]


def test_install_in_one_step(root):
    """Without the swap: dnf says what is in the way, and does it when allowed to."""
    before = root.files()
    said = root.dnf("install", "itree-storage-server", ok=(1,))
    assert "conflict" in said and "--allowerasing" in said
    assert root.installed() == STOCK and root.files() == before
    root.dnf("install", "--allowerasing", "itree-storage-server")
    assert root.installed() == ours("0.1")


def test_the_repository_alone_replaces_nothing(root):
    root.dnf("upgrade")
    assert root.installed() == STOCK


def test_upgrade_downgrade_remove_and_swap_back(root, new):
    before = root.files()
    install(root)
    (root.path / "etc" / "mke2fs.conf").write_text("[defaults]\n\tblocksize = 4096\n# the admin's\n")
    root.repos(itree=new / "repo")
    root.dnf("upgrade")
    assert root.installed() == ours("0.2")
    assert "the admin's" in (root.path / "etc" / "mke2fs.conf").read_text(), "configuration was overwritten"
    root.repos(itree=new.parent / "old" / "repo")
    root.dnf("downgrade", "e2fsprogs-itree", "e2fsprogs-itree-libs", "itree-release", "itree-storage-server")
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
