# SPDX-License-Identifier: GPL-2.0-only
"""A release, by `make release`: of few packages here, with all its other parts but the image."""

import os
import subprocess
import sys

import publisher
import pytest
import treebuild as tb
from conftest import REPO
from spdx_tools.spdx.parser.parse_anything import parse_file

NAMES = ("itree-storage-server", "itree-release")
BUILDER = REPO / "packaging" / "release" / "build"


def release(out, packages, *names, ok=True):
    parts = [word for part in ("bookworm", "rpm", "ansible") for word in ("--part", part)]
    argv = [sys.executable, BUILDER, *names, "--out", out, "--packages", packages, *parts]
    env = {**os.environ, "ITREE_RELEASE": "0.1", "SOURCE_DATE_EPOCH": "1795700000"}
    env.pop("ITREE_SIGN_KEY", None)
    res = subprocess.run([str(a) for a in argv], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    assert (res.returncode == 0) == ok, res.stdout
    return res.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release, and where its packages were built."""
    top = tmp_path_factory.mktemp("release")
    release(top / "out", top / "packages", *NAMES)
    return top / "out", top / "packages"


def files(top):
    return {rel: (top / rel).read_bytes() for rel in tb.files_below(top)}


def test_its_checksums_are_signed_and_right(made, tmp_path):
    tmp_path.chmod(0o700)
    env = {**os.environ, "GNUPGHOME": str(tmp_path)}
    for argv in (["gpg", "--quiet", "--import", "itree-archive-keyring.asc"],
                 ["gpg", "--verify", "SHA256SUMS.asc", "SHA256SUMS"],
                 ["sha256sum", "--check", "--strict", "SHA256SUMS"]):  # fmt: skip
        subprocess.run(argv, cwd=made[0], env=env, check=True, capture_output=True)
    listed = {line.split("  ")[1] for line in (made[0] / "SHA256SUMS").read_text().splitlines()}
    assert listed == set(files(made[0])) - {"SHA256SUMS", "SHA256SUMS.asc"}


def test_its_parts(made):
    there = files(made[0])
    for start, end in (("apt/bookworm/itree-storage-server_", ".deb"), ("rpm/itree-release-", ".noarch.rpm"),
                       ("rpm/itree-storage-server-", ".src.rpm"), ("ansible/itree-storage-", ".tar.gz")):  # fmt: skip
        assert [n for n in there if n.startswith(start) and n.endswith(end)], (start, end)
    output = there["README"].decode()
    assert "It lacks trixie.\nIt lacks image.\n" in output.replace("\n\n", "\n")
    assert f"only {', '.join(NAMES)}." in output


def test_advise_runs_without_installing(made, tmp_path):
    """From another directory, by the host's Python alone."""
    argv = ["/usr/bin/python3", "-I", made[0] / "itree-advise.pyz"]
    res = subprocess.run([*argv, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--min-blocks" in res.stdout
    res = subprocess.run([*argv, "/proc"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert res.returncode == 1 and "/proc" in res.stderr and "Traceback" not in res.stderr, res


def test_hosts_meet_the_repositories_by_names_without_a_version(made):
    for stable, start in (("apt/bookworm/itree-archive-keyring.deb", "apt/bookworm/itree-archive-keyring_"),
                          ("rpm/itree-release.rpm", "rpm/itree-release-1-0.1.noarch")):  # fmt: skip
        contents = files(made[0])
        (versioned,) = [name for name in contents if name.startswith(start)]
        assert contents[stable] == contents[versioned]
    listed = contents["apt/bookworm/Packages"].decode()
    assert listed.count("Package: itree-archive-keyring\n") == 1
    argv = ["dpkg-deb", "--fsys-tarfile", made[0] / "apt/bookworm/itree-archive-keyring.deb"]
    tar = subprocess.run(argv, capture_output=True, check=True).stdout
    argv = ["tar", "-xO", "./etc/apt/sources.list.d/itree.sources"]
    text = subprocess.run(argv, input=tar, capture_output=True, check=True).stdout.decode()
    assert f"URIs: {publisher.read().url}apt/bookworm\n" in text and "Enabled: yes\n" in text


def test_twice_the_same_bytes(made, tmp_path):
    """Elsewhere, later, with the same key."""
    (tmp_path / "packages").mkdir()
    key = (made[1] / "test-key.asc").read_text()
    (tmp_path / "packages" / "test-key.asc").write_text(key)
    release(tmp_path / "out", tmp_path / "packages", *NAMES)
    first, second = files(made[0]), files(tmp_path / "out")
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []


def test_the_bill_of_materials(made):
    document = parse_file(str(made[0] / "sbom.spdx.json"))
    digests = {p.file_name: p.checksums[0].value for p in document.packages if p.file_name}
    sums = dict(reversed(line.split("  ")) for line in (made[0] / "SHA256SUMS").read_text().splitlines())
    assert digests == {name: value for name, value in sums.items() if name != "sbom.spdx.json"}
    assert {"linux", "e2fsprogs", "rsync"} <= {p.name for p in document.packages}


def test_nothing_else_is_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mail").write_text("precious")
    output = release(tmp_path / "out", tmp_path / "packages", *NAMES, ok=False)
    assert "is no release" in output and (tmp_path / "out" / "mail").read_text() == "precious"


def test_unknown_package(tmp_path):
    assert "there is no package linux" in release(tmp_path / "out", tmp_path / "packages", "linux", ok=False)


def test_a_part_without_packages(tmp_path):
    """A builder that is given no name builds everything."""
    output = release(tmp_path / "out", tmp_path / "packages", "itree-release", ok=False)
    assert "bookworm: none of itree-release is built for it" in output and not (tmp_path / "packages").exists()
