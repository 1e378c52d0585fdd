# SPDX-License-Identifier: GPL-2.0-only
"""The .debs, installed by apt into a copy of this host: an overlay over its root, with its own package database."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest
import roots
from conftest import REPO

NAMES = ("e2fsprogs", "libext2fs2")


@pytest.fixture(scope="session")
def repo(work):
    if 'VERSION_ID="12"' not in pathlib.Path("/etc/os-release").read_text():
        pytest.skip("the .debs are for Debian 12, and this is not it")
    env = {**os.environ, "ITREE_RELEASE": "0.1"}
    env.pop("ITREE_SIGN_KEY", None)
    argv = [REPO / "packaging" / "deb" / "build", "repo", "--out", work / "deb"]
    res = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False)  # fmt: skip
    assert res.returncode == 0, res.stdout
    return work / "deb" / "apt"


class Host:
    """A copy of this host that keeps its changes in memory; `repo` is copied to its /repo, with its key."""

    def __init__(self, aside, repo):
        self.aside, self.root = aside, aside / "root"
        roots.call("mount", "-t", "tmpfs", "-o", "mode=755", "itree-test", aside)
        try:
            for name in ("upper", "work", "root"):
                (aside / name).mkdir()
            options = f"lowerdir=/,upperdir={aside}/upper,workdir={aside}/work"
            roots.call("mount", "-t", "overlay", "-o", options, "itree-test", self.root)
            shutil.copytree(repo, self.root / "repo")
            # This host's mirrors are not asked: what is wanted lies in /repo.
            (self.root / "apt").mkdir()
            self.source()
            for name in ("lists/partial", "archives/partial"):
                (self.root / "apt" / name).mkdir(parents=True)
            os.mknod(self.root / "apt" / "null", 0o20666, os.makedev(1, 3))
            # No service of the copy is to be started.
            policy = self.root / "usr" / "sbin" / "policy-rc.d"
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        except BaseException:
            self.close()
            raise

    def source(self, options="signed-by=/repo/itree-archive-keyring.asc"):
        (self.root / "apt" / "sources.list").write_text(f"deb [{options}] file:/repo ./\n")

    def run(self, script, ok=(0,)):
        __tracebackhide__ = True
        return roots.call("chroot", self.root, "/bin/sh", "-ec", script, ok=ok)[1]

    def apt(self, *args, ok=(0,)):
        __tracebackhide__ = True
        options = ("Dir::Etc::SourceList=/apt/sources.list", "Dir::Etc::SourceParts=/apt/none",
                   "Dir::State::Lists=/apt/lists", "Dir::Cache::Archives=/apt/archives", "Dir::Cache::pkgcache=",
                   "Dir::Cache::srcpkgcache=", "APT::Sandbox::User=root", "Dir::Etc::PreferencesParts=/apt/none",
                   "Dpkg::Options::=--force-confold", "Dpkg::Use-Pty=0")  # fmt: skip
        words = " ".join(f"-o {o}" for o in options)
        return self.run(f"DEBIAN_FRONTEND=noninteractive apt-get -y {words} {' '.join(args)}", ok)

    def versions(self):
        lines = self.run(f"dpkg-query -W -f '${{Package}} ${{Version}} ${{db:Status-Abbrev}}\\n' {' '.join(NAMES)}")
        return {t.split()[0]: tuple(t.split()[1:]) for t in lines.splitlines()}

    def close(self):
        roots.call("umount", self.root, ok=None)
        roots.call("umount", self.aside)


@pytest.fixture
def host(repo):
    if os.geteuid():
        pytest.skip("a copy of this host wants the rights of root (mount)")
    with tempfile.TemporaryDirectory(prefix="itree-host-") as path:
        made = Host(pathlib.Path(path), repo)
        try:
            yield made
        finally:
            made.close()


USE = """
cd /apt
mke2fs -q -F -t ext4 {options} image 16M
e2fsck -fn image
"""


def test_install_and_use(host):
    stock = host.versions()
    assert all(v[1] == "ii" and "itree" not in v[0] for v in stock.values()), stock
    host.apt("update")
    said = host.apt("install", "e2fsprogs")
    assert "no file system has been changed" in said
    now = host.versions()
    assert all(v[1] == "ii" and v[0].endswith("itree0.1") for v in now.values()), now
    assert host.run("dpkg --audit") == ""
    host.run(USE.format(options="-O itree"))
    assert "itree" in host.run("dumpe2fs -h /apt/image 2>/dev/null | grep features")
    for name in NAMES:
        lost = [t for t in host.run(f"dpkg -L {name}").splitlines() if not os.path.lexists(f"{host.root}{t}")]
        assert not [t for t in lost if "/share/" not in t], lost


def test_back_to_debians(host):
    """As README.itree says, with the packages of the mirror this host is configured with."""
    host.apt("update")
    host.apt("install", "e2fsprogs")
    offered = host.run("apt-cache madison e2fsprogs").split()
    if len(offered) < 3:
        pytest.skip("no mirror of Debian offers e2fsprogs here")
    wanted = f"e2fsprogs={offered[2]} libext2fs2={offered[2]}"
    host.run(f"DEBIAN_FRONTEND=noninteractive apt-get -y --allow-downgrades -o Dpkg::Use-Pty=0 install {wanted}")
    now = host.versions()
    assert all(v == (offered[2], "ii") for v in now.values()), now
    assert host.run("dpkg --audit") == ""
    host.run(USE.format(options=""))


def test_again_says_nothing(host):
    host.apt("update")
    host.apt("install", "e2fsprogs")
    assert "no file system" not in host.apt("install", "--reinstall", "e2fsprogs")


def refused(host, pattern, *args):
    before = host.versions()
    said = host.apt(*args, ok=(100,))
    assert re.search(pattern, said), said
    assert host.versions() == before


def test_unsigned(host):
    (host.root / "repo" / "InRelease").unlink()
    refused(host, "is not signed", "update")


def test_wrong_or_no_key(host):
    host.source("signed-by=/repo/nothing.asc")
    refused(host, "NO_PUBKEY|not signed|couldn't be verified|unreadable", "update")


def test_tampered_package(host):
    host.apt("update")
    (path,) = (host.root / "repo").glob("e2fsprogs_*.deb")
    data = bytearray(path.read_bytes())
    data[-1000] ^= 0x40
    path.write_bytes(data)
    refused(host, "(?i)hash sum mismatch|unexpected size", "install", "e2fsprogs")


def test_tampered_metadata(host):
    packages = host.root / "repo" / "Packages"
    packages.write_text(packages.read_text().replace("Priority: required", "Priority: optional"))
    refused(host, "(?i)hash sum mismatch|unexpected size", "update")


def test_full_disk(host):
    """What was installed stays, and with room made it is put right as dpkg says. The copy's changes lie in a tmpfs."""
    host.apt("update")
    roots.call("mount", "-o", "remount,size=16M", host.aside)
    free = os.statvfs(host.aside)
    with open(host.aside / "ballast", "wb") as handle:
        handle.write(b"\0" * max(0, free.f_bavail * free.f_frsize - (1 << 19)))
    refused(host, "(?i)not enough|enough free space|No space left", "install", "e2fsprogs")
    host.run("e2fsck -V")
    (host.aside / "ballast").unlink()
    roots.call("mount", "-o", "remount,size=1G", host.aside)
    host.run("dpkg --configure -a")  # as dpkg itself says
    host.apt("install", "e2fsprogs")
    assert host.run("dpkg --audit") == ""
