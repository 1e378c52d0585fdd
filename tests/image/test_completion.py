# SPDX-License-Identifier: GPL-2.0-only
"""What bash offers for itree-backup is what itree-backup knows."""

import os
import re
import subprocess

import pytest
from conftest import REPO

TOP = REPO / "image" / "appliance" / "usr"
SCRIPT = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_itree_backup
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(tmp_path):
    """A function that gives what is offered for the last of some words."""
    (tmp_path / "hosts.d").mkdir()
    for name in ("mail", "mirror", "nfs"):
        (tmp_path / "hosts.d" / f"{name}.conf").touch()
    env = {**os.environ, "PATH": f"{TOP / 'bin'}:{os.environ['PATH']}"}

    def complete(*words):
        script = TOP / "share/bash-completion/completions/itree-backup"
        argv = ["bash", "-c", SCRIPT, "bash", script, "itree-backup", "--config", tmp_path, *words]
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout.split()

    return complete


def commands():
    text = subprocess.run([TOP / "bin" / "itree-backup", "nothing"], capture_output=True, text=True, check=False).stderr
    return re.findall(r"'?([a-z-]+)'?(?:, |\))", text[text.index("choose from") + 11 :])


def test_commands(offered):
    known = commands()
    assert {"add", "restore", "forget", "prepare"} <= set(known)
    assert set(offered("")) == {*known, "--help", "--config"}
    assert offered("ver") == ["verify"]


def test_options_of_a_command(offered):
    assert sorted(offered("restore", "--")) == ["--help", "--overwrite", "--to"]
    assert offered("restore", "--o") == ["--overwrite"]


def test_hosts(offered):
    assert offered("run", "m") == ["mail", "mirror"]
    assert offered("status", "--json", "x") == []
    # Files, which bash offers by itself.
    assert offered("restore", "mail", "") == []


def test_no_hosts_yet(offered, tmp_path):
    for path in (tmp_path / "hosts.d").iterdir():
        path.unlink()
    assert offered("run", "") == []
