# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the packages share: builds of the repository, and roots to install into."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "packaging" / "lib"), str(pathlib.Path(__file__).parent)]

import roots  # noqa: E402


def build(out, release, *args, expect=0, **env):
    """Run packaging/rpm/build; what it printed."""
    argv = [REPO / "packaging" / "rpm" / "build", *args, "--out", out]
    env = {**os.environ, "ITREE_RELEASE": release, **env}
    env.pop("ITREE_SIGN_KEY", None)
    res = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False)  # fmt: skip
    assert res.returncode == expect, res.stdout
    return res.stdout


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A directory that goes when the session ends: roots and packages are large."""
    path = tmp_path_factory.mktemp("packages")
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def old(work):
    """The repository as an admin first meets it."""
    build(work / "old", "0.1", "repo")
    return work / "old"


@pytest.fixture(scope="session")
def new(work, old):
    """The same sources at a higher release, signed with the same key."""
    (work / "new").mkdir()
    shutil.copy(old / "test-key.asc", work / "new")
    build(work / "new", "0.2", "repo")
    return work / "new"


@pytest.fixture(scope="session")
def base(work):
    """A repository that stands for the distribution: what this host has, as packages."""
    return roots.distribution(work / "base")


@pytest.fixture
def root(work, base, old, request):
    """A root with the base system and the distribution's e2fsprogs; our repository is known to it."""
    if os.geteuid():
        pytest.skip("installing into a root wants the rights of root (chroot)")
    made = roots.Root(work / f"root-{request.node.name}", {"base": base, "itree": old / "repo"})
    yield made
    made.close()
