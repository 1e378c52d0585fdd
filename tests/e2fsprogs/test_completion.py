# SPDX-License-Identifier: GPL-2.0-only
"""What bash offers for e4itree is what e4itree knows."""

import os
import re
import subprocess

import pytest
from conftest import REPO, ROOT

SBIN = ROOT / "sbin"
SCRIPT = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_e4itree
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(*words):
    """The words that bash offers for the last of some words."""
    argv = ["bash", "-c", SCRIPT, "bash", REPO / "e2fsprogs/overlay/misc/e4itree.bash", "e4itree", *words]
    env = {**os.environ, "PATH": f"{SBIN}:{os.environ['PATH']}"}
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout.split()


def test_commands():
    assert offered("") == ["build", "drop", "check", "stat", "pack", "arrange"]
    assert offered("p") == ["pack"]


@pytest.mark.parametrize("words", [("--",), ("build", "--"), ("pack", "/srv", "--")])
def test_options(words):
    known = subprocess.run([SBIN / "e4itree", "--help"], capture_output=True, text=True, check=True).stdout
    assert offered(*words) == re.findall(r"(?m)^ .*?(--[a-z-]+)", known)


def test_directories_are_left_to_bash():
    assert offered("build", "") == []
