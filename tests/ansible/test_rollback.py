# SPDX-License-Identifier: GPL-2.0-only
"""The role rollback on this host under overlays: packages, repository, what it refuses.

Whole machines: test_*machines.py.
"""

import json
import shutil

import machine_packages
import pytest
import repositories
from conftest import full, run
from test_host_roles import APT_FILES

OURS = "2~itree0.1"
SHIM = """#!/bin/sh
# The devices of this machine are not the test's business.
echo "{}"
"""


def apt_only(sandbox, *directories):
    """Let apt know these repositories and no other."""
    sandbox.run("sh", "-c", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*")
    sandbox.put("/etc/apt/apt.conf.d/99test", 'APT::Sandbox::User "root";\n')
    for number, path in enumerate(directories):
        sandbox.put(f"/etc/apt/sources.list.d/test{number}.list", f"deb [trusted=yes] file:{path} ./\n")
    sandbox.run("apt-get", "-q", "update")


@pytest.fixture
def converted(collection, sandbox, tmp_path):
    """A host that has a package in our version, from our repository; its distribution has another."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    stock, _key = repositories.apt(tmp_path / "stock")
    ours, key = repositories.apt(tmp_path / "ours", OURS)
    apt_only(sandbox, stock)
    collection.role("repo", before=sandbox.before, itree_repo_url=f"file://{ours}", itree_repo_key=str(key)).good()
    sandbox.run("apt-get", "-qy", "install", repositories.NAME)
    assert version(sandbox) == OURS
    return sandbox


def version(sandbox):
    return sandbox.run("dpkg-query", "-W", "-f", "${Version}", repositories.NAME)


def role(collection, sandbox, *options, **different):
    variables = {"itree_rollback_volumes": [], "itree_rollback_kernel": False, **different}
    return collection.role("rollback", *options, before=sandbox.before, **variables)


def test_packages(collection, converted):
    """The distribution's version is back and our repository gone."""
    converted.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    done = role(collection, converted).good()
    assert done.changed()["here"] > 0
    assert version(converted) == "1"
    assert not [p for p in converted.changes() if p in APT_FILES]


@pytest.fixture
def volume(image, tools):
    """A volume with the feature, as a block device."""
    made = image("-O", "^has_journal")
    run(tools / "tune2fs", "-O", "itree", made.path)
    device = run("losetup", "--find", "--show", made.path)[1].strip()
    yield device
    run("losetup", "--detach", device)


@full
def test_twice(collection, converted):
    """The second time there is nothing to do."""
    converted.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    role(collection, converted).good()
    assert role(collection, converted).good().changed() == {"here": 0}


@full
def test_refused(collection, converted, volume):
    """A volume that nobody named, packages that nobody has: nothing is changed."""
    converted.put("/usr/bin/lsblk", SHIM.format(f"{volume} ext4"), 0o755)
    before = converted.changes()
    role(collection, converted).bad(f"{volume} has the itree feature", "Nothing was changed")
    assert version(converted) == OURS and converted.changes() == before
    converted.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    converted.run("sh", "-c", "rm /etc/apt/sources.list.d/test0.list && apt-get -q update")
    before = converted.changes()
    role(collection, converted).bad(f"no version but ours of {repositories.NAME}", "Nothing was changed")
    assert version(converted) == OURS and converted.changes() == before


@full
def test_check_mode(collection, converted):
    converted.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    before = converted.changes()
    assert role(collection, converted, "--check").good().changed()["here"] > 0
    assert version(converted) == OURS and converted.changes() == before


def test_kernel_on_hold(collection, sandbox, tmp_path):
    """A kernel on hold is refused before anything changes, unless the kernel is to stay."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    image = "linux-image-6.99-itree"
    packages = {image: ("1", ""), "linux-image-itree": ("1", f"Depends: {image}\n"), "itree-advise": ("1", "")}
    apt_only(sandbox, repositories.apt_relations(tmp_path, packages)[0])
    sandbox.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    menu = [{"id": "debian.conf", "version": "6.12.1", "isDefault": True}, {"id": "i.conf", "version": "6.99-itree"}]
    sandbox.put("/usr/bin/bootctl", f"#!/bin/sh\necho '{json.dumps(menu)}'\n", 0o755)
    sandbox.run("apt-get", "-qy", "install", "linux-image-itree", "itree-advise")
    sandbox.run("apt-mark", "hold", image)

    def installed():
        text = sandbox.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *packages, ok=(0, 1))
        return {line.split()[1] for line in text.splitlines() if line.startswith("installed ")}

    kernel = {"itree_rollback_kernel": True, "itree_rollback_loader": "systemd-boot"}
    role(collection, sandbox, **kernel).bad(f"{image}: on hold", "apt-mark unhold", "Nothing was changed")
    assert installed() == set(packages)
    role(collection, sandbox).good()
    assert installed() == {image, "linux-image-itree"}
    sandbox.run("apt-mark", "unhold", image)
    role(collection, sandbox, **kernel).good()
    assert installed() == set()


@full
def test_real_packages(collection, sandbox, tmp_path):
    """Our e2fsprogs by the roles repo and packages, and Debian's back by rollback."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    names = ["e2fsprogs", "libext2fs2"]
    stock = tmp_path / "stock"
    stock.mkdir()
    code, output = run("apt-get", "-o", "APT::Sandbox::User=root", "download", *names, cwd=stock, ok=None)
    if code:
        pytest.skip(f"no mirror of Debian offers e2fsprogs here: {output[-300:]}")
    (stock / "Packages").write_text(run("apt-ftparchive", "packages", ".", cwd=stock)[1])
    (tmp_path / "key").mkdir()
    key = machine_packages.repository(machine_packages.e2fsprogs(tmp_path), tmp_path / "ours", tmp_path / "key")
    apt_only(sandbox, stock)
    sandbox.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    # As the mirror has it, which may be newer than what this host has.
    sandbox.run("apt-get", "-qy", "install", "--allow-downgrades", *names)
    query = ("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n", *names)
    before = sandbox.run(*query)
    assert "itree" not in before
    variables = {"itree_repo_url": f"file://{tmp_path}/ours", "itree_repo_key": str(key)}
    collection.role("repo", before=sandbox.before, **variables).good()
    packages = {"itree_packages_apt": ["e2fsprogs"]}
    collection.role("packages", before=sandbox.before, **packages).good()
    assert collection.role("packages", before=sandbox.before, **packages).good().changed() == {"here": 0}
    assert sandbox.run(*query).count("itree") == 2
    assert "e4itree" in sandbox.run("e4itree", "--version")
    role(collection, sandbox).good()
    assert sandbox.run(*query) == before
    assert sandbox.run("dpkg", "--audit") == "" and "e4itree" not in sandbox.run("dpkg", "-L", "e2fsprogs")
    assert role(collection, sandbox).good().changed() == {"here": 0}


DNF_BASE = """[stock]
name=stock
baseurl=file://{}
gpgcheck=0
metadata_expire=0
"""


def dnf_host(sandbox, stock):
    """This host with the names of Fedora: Debian's dnf, a database of rpm's, and a distribution's repository."""
    sandbox.put("/etc/rpm/macros", "%_dbpath /var/lib/rpm\n")
    sandbox.run("sh", "-c", "rm -f /etc/os-release && mkdir -p /etc/yum.repos.d /etc/pki/rpm-gpg /var/lib/rpm")
    sandbox.put("/etc/os-release", 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=42\n')
    sandbox.put("/etc/fedora-release", "Fedora release 42 (test)\n")
    sandbox.put("/etc/redhat-release", "Fedora release 42 (test)\n")
    sandbox.put("/etc/dnf/vars/releasever", "42\n")
    sandbox.put("/etc/yum.repos.d/stock.repo", DNF_BASE.format(stock))
    # Fedora's libraries lie there, and its loader looks there.
    sandbox.put("/etc/ld.so.conf", "/usr/lib64\ninclude /etc/ld.so.conf.d/*.conf\n")
    sandbox.run("dnf", "-qy", "install", "test-base", "e2fsprogs")


@full
def test_real_packages_dnf(collection, sandbox, tmp_path):
    """Our e2fsprogs' RPMs by the roles repo and packages, and the distribution's back by rollback."""
    if not shutil.which("dnf"):
        pytest.skip("no dnf on this host")
    ours, key = machine_packages.e2fsprogs_rpms(tmp_path)
    rpms = [next(ours.glob(f"e2fsprogs-itree-{which}.x86_64.rpm")) for which in ("[0-9]*", "libs-*")]
    (tmp_path / "stock").mkdir()
    dnf_host(sandbox, repositories.dnf_distribution(tmp_path / "stock", rpms))
    sandbox.put("/usr/bin/lsblk", SHIM.format("/dev/sda1 xfs"), 0o755)
    query = ("rpm", "-qa", "--qf", "%{NAME}-%{VERSION}\n")
    sums = ("sha256sum", *(f"/{repositories.SBIN}/{n}" for n in repositories.STOCK_PROGRAMS),
            *(f"/{repositories.LIB}/{n}" for n in repositories.STOCK_LIBRARIES))  # fmt: skip
    before, were = sorted(sandbox.run(*query).split()), sandbox.run(*sums)
    assert "e2fsprogs-1.47.0" in before
    variables = {"itree_repo_url": f"file://{ours}", "itree_repo_key": str(key)}

    def twice(role_, **more):
        foretold = collection.role(role_, "--check", before=sandbox.before, **more).good()
        played = collection.role(role_, before=sandbox.before, **more).good()
        assert played.changed()["here"] > 0 and foretold.changed()["here"] > 0
        assert collection.role(role_, before=sandbox.before, **more).good().changed() == {"here": 0}

    # Before the repository is there, check mode foretells packages that dnf does not know.
    foretold = collection.role("packages", "--check", before=sandbox.before, itree_packages_dnf=["e2fsprogs-itree"])
    assert foretold.good().changed()["here"] == 1
    collection.role("packages", before=sandbox.before, itree_packages_dnf=["e2fsprogs-itree"]).bad("e2fsprogs-itree")
    assert sorted(sandbox.run(*query).split()) == before
    twice("repo", **variables)
    twice("packages", itree_packages_dnf=["e2fsprogs-itree"])
    assert sum(n.startswith("e2fsprogs-itree-") for n in sandbox.run(*query).split()) == 2
    assert "e4itree" in sandbox.run("e4itree", "--version")
    # mke2fs.conf is the admin's, who here is Debian.
    assert sandbox.run("rpm", "-V", "--noconfig", "e2fsprogs-itree", "e2fsprogs-itree-libs") == ""
    twice("rollback", itree_rollback_volumes=[], itree_rollback_kernel=False)
    assert sorted(n for n in sandbox.run(*query).split() if not n.startswith("gpg-pubkey")) == before
    assert sandbox.run(*sums) == were
    sandbox.run("test", "!", "-e", "/usr/sbin/e4itree")
    assert "/etc/yum.repos.d/itree.repo" not in sandbox.changes()
