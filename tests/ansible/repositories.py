# SPDX-License-Identifier: GPL-2.0-only
"""Small signed repositories, with one package that has one file."""

import os
import shutil

import pkg
from conftest import run

NAME = "itree-probe"
FILE = "usr/share/itree-probe/file"
SPEC = f"""
Name: {NAME}
Version: 1
Release: 1
Summary: Nothing
License: GPL-2.0-only
BuildArch: noarch
%description
Nothing.
%install
mkdir -p %{{buildroot}}/usr/share/itree-probe
echo there > %{{buildroot}}/{FILE}
%files
/{FILE}
"""


def sign_apt(repo, top):
    """Make the .debs of a directory a flat, signed APT repository; its key, which is a file of top."""
    for name, argv in (("Packages", ["packages", "."]), ("Release", ["-o", "APT::FTPArchive::Release::Suite=stable",
                                                                     "release", "."])):  # fmt: skip
        (repo / name).write_text(run("apt-ftparchive", *argv, cwd=repo)[1])
    with pkg.Key(None, top) as key:
        key.gpg("--local-user", key.fingerprint, "--output", repo / "InRelease", "--clearsign", repo / "Release")
        shutil.copy(key.public, top / "key.asc")
    return top / "key.asc"


def apt(top, version="1"):
    """An APT repository as packaging/deb/build lays them out, of one package; (its directory, its key)."""
    repo, tree = top / "apt", top / "tree"
    repo.mkdir(parents=True)
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / FILE).parent.mkdir(parents=True)
    (tree / FILE).write_text("there\n")
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {NAME}\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <nobody@itree.invalid>\n"
        "Description: nothing\n"
    )
    run("dpkg-deb", "--root-owner-group", "--build", tree, repo / f"{NAME}_{version}_all.deb")
    return repo, sign_apt(repo, top)


def dnf(top):
    """A dnf repository with signed metadata; (its directory, its key)."""
    repo = top / "dnf"
    repo.mkdir(parents=True)
    (top / "probe.spec").write_text(SPEC)
    run("rpmbuild", "-bb", "--nodeps", "--define", f"_topdir {top}/rpm", top / "probe.spec")
    packages = list((top / "rpm" / "RPMS").rglob("*.rpm"))
    with pkg.Key(None, top) as key:
        key.sign_rpms(packages)
        for path in packages:
            shutil.copy(path, repo)
        run("createrepo_c", "--quiet", repo)
        key.sign_file(repo / "repodata" / "repomd.xml")
        shutil.copy(key.public, top / "key.asc")
    return repo, top / "key.asc"


def stranger(top):
    """A key that has signed nothing."""
    top.mkdir()
    with pkg.Key(None, top) as key:
        shutil.copy(key.public, top / "key.asc")
    os.chmod(top / "key.asc", 0o644)
    return top / "key.asc"
