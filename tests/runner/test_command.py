# SPDX-License-Identifier: GPL-2.0-only
"""Commands that tests run (tests/lib/command.py)."""

import subprocess

import command
import pytest


def test_output_holds_both_streams():
    assert command.run("sh", "-c", "echo a; echo b >&2") == (0, "a\nb\n")
    res = command.finished("sh", "-c", "echo a; echo b >&2", stderr=subprocess.PIPE)
    assert (res.stdout, res.stderr) == ("a\n", "b\n")


def test_an_unexpected_exit_code_fails_with_the_output():
    with pytest.raises(AssertionError, match="exit code 3\nwhy"):
        command.run("sh", "-c", "echo why; exit 3")
    assert command.run("sh", "-c", "exit 3", ok=(0, 3))[0] == 3
    assert command.run("sh", "-c", "exit 4", ok=None)[0] == 4


def test_variables_are_added_and_removed(monkeypatch):
    monkeypatch.setenv("ITREE_A", "a")
    monkeypatch.setenv("ITREE_B", "b")
    script = 'echo "$ITREE_A ${ITREE_B-none} $ITREE_C $LC_ALL"'
    assert command.run("sh", "-c", script, env={"ITREE_B": None, "ITREE_C": "c"})[1] == "a none c C.UTF-8\n"


def test_standard_input():
    assert command.run("cat", input_="text")[1] == "text" and command.run("cat")[1] == ""
