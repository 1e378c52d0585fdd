# SPDX-License-Identifier: GPL-2.0-only
"""Bash offers the words that itree-backup and itree-appliance accept."""

import functools
import os
import re
import subprocess

import completion
import pytest
from conftest import REPO

TOP = REPO / "image" / "appliance" / "usr"
EXTRA = REPO / "image" / "mkosi.extra" / "usr"
ENV = {**os.environ, "PATH": f"{TOP / 'bin'}:{EXTRA / 'sbin'}:{os.environ['PATH']}"}
COMPLETIONS = "share/bash-completion/completions"
# An installed completion has the name of its command.
complete = functools.partial(completion.offered, TOP / COMPLETIONS / "itree-backup", env=ENV)


@pytest.fixture
def offered(tmp_path):
    """A function that gives what is offered for the last of some words of itree-backup."""
    (tmp_path / "hosts.d").mkdir()
    for name in ("mail", "mirror", "nfs"):
        (tmp_path / "hosts.d" / f"{name}.conf").touch()
    return functools.partial(complete, "itree-backup", "--config", tmp_path)


def commands(program):
    """The commands that a program lists when it refuses one."""
    text = subprocess.run([program, "nothing"], env=ENV, capture_output=True, text=True, check=False).stderr
    return re.findall(r"'?([a-z-]+)'?(?:, |\))", text[text.index("choose from") + 11 :])


def test_commands(offered):
    known = commands("itree-backup")
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


def test_appliance(tmp_path):
    """The commands and options of itree-appliance; hosts are no arguments of it."""
    known = commands("itree-appliance")
    assert {"status", "update", "reset"} <= set(known)
    assert set(complete("itree-appliance", "")) == {*known, "--help"}
    assert complete("itree-appliance", "up") == ["update"]
    assert sorted(complete("itree-appliance", "update", "--")) == ["--again", "--check", "--from", "--help", "--reboot"]
    (tmp_path / "hosts.d").mkdir()
    (tmp_path / "hosts.d" / "mail.conf").touch()
    assert complete("itree-appliance", "--config", tmp_path, "update", "") == []


def test_image_loads_them():
    """Bash looks a completion up by the command's name, and Debian's bash needs a package for that."""
    link = EXTRA / COMPLETIONS / "itree-appliance"
    assert (TOP / COMPLETIONS / os.readlink(link)).exists() and "/" not in os.readlink(link)
    for path in (REPO / "image" / "mkosi.conf.d").iterdir():
        assert "bash-completion" in path.read_text().split(), path
