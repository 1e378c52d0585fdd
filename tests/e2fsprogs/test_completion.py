# SPDX-License-Identifier: GPL-2.0-only
"""Bash offers the words that e4itree accepts."""

import os
import re
import subprocess

import completion
import pytest
from conftest import REPO, ROOT

SBIN = ROOT / "sbin"


def offered(*words):
    """The words that bash offers for the last of some words."""
    env = {**os.environ, "PATH": f"{SBIN}:{os.environ['PATH']}"}
    return completion.offered(REPO / "e2fsprogs/overlay/misc/e4itree.bash", "e4itree", *words, env=env)


def test_commands():
    assert offered("") == ["build", "drop", "check", "stat", "pack", "arrange"]
    assert offered("p") == ["pack"]


@pytest.mark.parametrize("words", [("--",), ("build", "--"), ("pack", "/srv", "--")])
def test_options(words):
    known = subprocess.run([SBIN / "e4itree", "--help"], capture_output=True, text=True, check=True).stdout
    assert offered(*words) == re.findall(r"(?m)^ .*?(--[a-z-]+)", known)


def test_directories_are_left_to_bash():
    assert offered("build", "") == []
