# SPDX-License-Identifier: GPL-2.0-only
"""Small signed repositories, with one package that has one file."""

import os
import re
import shutil

import pkg
from conftest import run

NAME = "itree-probe"
SHARE = "usr/share/itree-probe"
FILE = f"{SHARE}/file"
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


def apt(top, version="1", recommended=""):
    """An APT repository as packaging/deb/build lays them out; (its directory, its key).

    Of one package, and another that it recommends, if that has a name.
    """
    fields = f"Recommends: {recommended}\n" if recommended else ""
    return apt_relations(top, {NAME: (version, fields), **({recommended: (version, "")} if recommended else {})},
                         {NAME: {FILE: "there\n"}})  # fmt: skip


def apt_relations(top, packages, contents=None):
    """An APT repository of packages {name: (version, lines of control)}; (its directory, its key).

    contents: {name: {path: text}}, for packages that are not empty. Files of etc become conffiles.
    """
    repo = top / "apt"
    repo.mkdir(parents=True)
    for name, (version, fields) in packages.items():
        tree, files = top / "tree" / name, (contents or {}).get(name, {})
        (tree / "DEBIAN").mkdir(parents=True)
        for path, text in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
            (tree / path).chmod(0o755 if text.startswith("#!") else 0o644)
        (tree / "DEBIAN" / "conffiles").write_text("".join(f"/{path}\n" for path in files if path.startswith("etc/")))
        (tree / "DEBIAN" / "control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <nobody@itree.invalid>\n"
            f"{fields}Description: nothing\n"
        )
        run("dpkg-deb", "--root-owner-group", "--build", tree, repo / f"{name}_{version}_all.deb")
    return repo, sign_apt(repo, top)


# Where the programs and libraries of e2fsprogs lie in Fedora.
SBIN, LIB = "usr/sbin", "usr/lib64"
STOCK_PROGRAMS, STOCK_LIBRARIES = ("mke2fs", "e2fsck", "tune2fs", "dumpe2fs"), ("libext2fs.so.2", "libe2p.so.2")
STOCK_SPEC = """
Name: e2fsprogs
Version: 1.47.0
Release: 1
Summary: Programs of this host's e2fsprogs
License: none
Requires: e2fsprogs-libs = 1.47.0-1
AutoReqProv: no
%description
The host's.
%package libs
Summary: Libraries of this host's e2fsprogs
AutoReq: no
%description libs
The host's.
%package -n test-base
Summary: What this host has by other means than rpm: no file, but its name for each
@PROVIDES@
%description -n test-base
Names.
%install
cp -a @TREE@/. %{buildroot}/
%transfiletriggerin -n test-base -P 2000000 -- /usr/lib64
/sbin/ldconfig
%transfiletriggerpostun -n test-base -P 2000000 -- /usr/lib64
/sbin/ldconfig
%files
/usr/sbin/*
%files libs
/usr/lib64/*
%files -n test-base
"""


def dnf_distribution(top, ours):
    """A repository of this host's e2fsprogs as Fedora packs it, and of what the packages `ours` want besides."""
    repo, tree = top / "dnf", top / "tree"
    for name in (SBIN, LIB):
        (tree / name).mkdir(parents=True)
    repo.mkdir()
    for name in STOCK_PROGRAMS:
        shutil.copy(f"/{SBIN}/{name}", tree / SBIN)
    known = run("/sbin/ldconfig", "-p")[1]
    for name in STOCK_LIBRARIES:
        shutil.copy(re.search(rf"^\s*{re.escape(name)} \(.*x86-64.*\) => (\S+)", known, re.M)[1], tree / LIB / name)
    wanted = {line.strip() for line in run("rpm", "-qp", "--requires", *ours)[1].splitlines()}
    names = sorted(n for n in wanted if not n.startswith(("rpmlib(", "config(", "libext2fs.", "libe2p.", "e2fsprogs")))
    spec = STOCK_SPEC.replace("@TREE@", str(tree)).replace(
        "@PROVIDES@", "\n".join(f"Provides: {n}" for n in ("/bin/sh", *names))
    )
    (top / "stock.spec").write_text(spec)
    run("rpmbuild", "-bb", "--nodeps", "--define", f"_topdir {top}/rpm", "--define", "__os_install_post %{nil}",
        "--define", "_build_id_links none", "--define", "debug_package %{nil}", top / "stock.spec")  # fmt: skip
    for path in (top / "rpm" / "RPMS").rglob("*.rpm"):
        shutil.copy(path, repo)
    run("createrepo_c", "--quiet", repo)
    return repo


def dnf_relations(top, packages):
    """A dnf repository of packages {name: lines of a spec}, without content but for a file of that name each."""
    repo = top / "dnf"
    repo.mkdir(parents=True)
    spec = "Name: relations\nVersion: 1\nRelease: 1\nSummary: Nothing\nLicense: none\nBuildArch: noarch\n"
    spec += "%description\nNothing.\n"
    for name, lines in packages.items():
        spec += f"%package -n {name}\nSummary: Nothing\nAutoReqProv: no\n" + "".join(f"{t}\n" for t in lines)
        spec += f"%description -n {name}\nNothing.\n%files -n {name}\n/{SHARE}/{name}\n"
    spec += f"%install\nmkdir -p %{{buildroot}}/{SHARE}\ncd %{{buildroot}}/{SHARE}\ntouch {' '.join(packages)}\n"
    (top / "relations.spec").write_text(spec)
    run("rpmbuild", "-bb", "--nodeps", "--define", f"_topdir {top}/rpm", top / "relations.spec")
    for path in (top / "rpm" / "RPMS").rglob("*.rpm"):
        shutil.copy(path, repo)
    run("createrepo_c", "--quiet", repo)
    return repo


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
