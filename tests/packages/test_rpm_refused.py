# SPDX-License-Identifier: GPL-2.0-only
"""What must not be installed is refused, with a reason, and the root stays as it was."""

import os
import re
import shutil

import pkg
import pytest
import roots
from conftest import REPO, build

INSTALL = ("install", "--allowerasing", "itree-storage-server")


def refused(root, pattern, *args):
    """The installation fails, says so in these words, and changes nothing."""
    __tracebackhide__ = True
    packages, files = root.installed(), root.files()
    output = root.dnf(*(args or INSTALL), ok=(1,))
    assert re.search(pattern, output), output
    assert root.installed() == packages, "something was installed"
    assert root.files() == files, "files were changed"


@pytest.fixture
def copy(old, tmp_path):
    """A copy of the signed repository, to be spoilt."""
    shutil.copytree(old / "repo", tmp_path / "repo")
    return tmp_path / "repo"


def tools(repo):
    (path,) = repo.glob("e2fsprogs-itree-1*.x86_64.rpm")
    return path


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_unsigned_packages(root, old, tmp_path):
    repo = tmp_path / "unsigned"
    shutil.copytree(old / "RPMS", repo)
    roots.call("createrepo_c", "--quiet", repo)
    root.repo("itree", repo, repo_gpgcheck=0, gpgkey=f"file://{old}/repo/RPM-GPG-KEY-itree")
    refused(root, r"is not signed")


def test_unsigned_metadata(root, copy):
    (copy / "repodata" / "repomd.xml.asc").unlink()
    root.repo("itree", copy)
    refused(root, r"(?s)Failed to download metadata.*(signature|repomd\.xml\.asc|GPG)")


def test_changed_metadata(root, copy):
    path = copy / "repodata" / "repomd.xml"
    path.write_text(path.read_text().replace("<revision>", "<revision>1"))
    root.repo("itree", copy)
    refused(root, r"(?i)(bad|invalid).*signature|signature.*(bad|invalid)|GPG")


def test_package_changed_after_the_metadata(root, copy):
    flip(tools(copy), -1000)
    root.repo("itree", copy)
    refused(root, r"(?i)checksum")


def test_package_and_metadata_changed(root, copy):
    """Who can write the repository but has no key."""
    flip(tools(copy), -1000)
    roots.call("createrepo_c", "--quiet", copy)
    root.repo("itree", copy, repo_gpgcheck=0)
    refused(root, r"(?i)GPG check FAILED|digest|corrupt|Problem opening package")


def test_missing_key(root, old):
    root.repo("itree", old / "repo", repo_gpgcheck=0, gpgkey="file:///nowhere/RPM-GPG-KEY-itree")
    refused(root, r"(?s)(Failed to retrieve GPG key|Couldn't open file|Curl error).*RPM-GPG-KEY-itree")


def test_wrong_key(root, old, work):
    """Another one's key is imported, and does not help."""
    build(work / "other", "0.1", "srpm", "itree-storage-server")
    from_other = work / "other.asc"
    with pkg.Key(work / "other" / "test-key.asc", work) as key:
        shutil.copy(key.public, from_other)
    root.repo("itree", old / "repo", repo_gpgcheck=0, gpgkey=f"file://{from_other}")
    refused(root, r"(?i)keys? .*(not correct|not installed|already installed)|NOKEY|GPG check FAILED")


def test_wrong_architecture(root):
    refused(root, r"(?s)(does not have a compatible architecture|nothing provides)", "--forcearch", "aarch64", *INSTALL)


def test_full_disk(work, base, old):
    if os.geteuid():
        pytest.skip("a small root wants the rights of root (mount)")
    root = roots.Root(work / "root-small", {"base": base, "itree": old / "repo"}, size="64M")
    try:
        free = os.statvfs(root.path)
        with open(root.path / "ballast", "wb") as handle:
            handle.write(b"\0" * (free.f_bavail * free.f_frsize - (1 << 20)))
        refused(root, r"(?i)at least \d+[KM]B more space needed")
    finally:
        root.close()


def test_builder_refuses(work):
    output = build(work / "bad", "0.1", "srpm", "--key", work / "no-such-key", expect=1)
    assert "no-such-key: no such file" in output
    (work / "no-key").write_text("this is no key\n")
    output = build(work / "bad", "0.1", "srpm", "--key", work / "no-key", expect=1)
    assert "no-key" in output
    assert "there is no package nonsense" in build(work / "bad", "0.1", "srpm", "nonsense", expect=2)
    assert not (work / "bad" / "SRPMS").exists()
    assert (REPO / "packaging" / "rpm" / "build").stat().st_mode & 0o111


def test_builder_refuses_a_key_that_is_none(work):
    (work / "no-pem").write_text("nothing\n")
    for path, words in ((work / "nowhere.pem", "no such file"), (work / "no-pem", "there is no private key in it")):
        assert words in build(work / "bad", "0.1", "srpm", "kernel-itree", "--module-key", path, expect=1)
    assert not (work / "bad" / "SRPMS").exists()


def test_an_option_that_is_not_there_stops_the_kernel(tmp_path):
    """kernel/config/configure, on a configuration that has less than a fragment asks for."""
    configure = REPO / "kernel" / "config" / "configure"
    (tmp_path / ".config").write_text("CONFIG_EXT4_FS=y\nCONFIG_MODULES=y\n# CONFIG_KUNIT is not set\n")
    asked = tmp_path / "asked.config"
    asked.write_text("CONFIG_EXT4_FS=y\n# CONFIG_KUNIT is not set\n")
    roots.call(configure, "--check", tmp_path, asked)
    asked.write_text("CONFIG_EXT4_FS=m\nCONFIG_EXT5_FS=y\n# CONFIG_MODULES is not set\n")
    output = roots.call(configure, "--check", tmp_path, asked, ok=(1,))[1]
    assert "CONFIG_EXT4_FS: wanted m (asked.config), got y" in output, output
    assert "CONFIG_EXT5_FS: wanted y" in output and "CONFIG_MODULES: wanted is not set" in output, output
