# SPDX-License-Identifier: GPL-2.0-only
"""The command line of each program in the repository: its help, and its answer to wrong usage."""

import fnmatch
import os
import pathlib
import re
import subprocess

import pytest
from command import finished

REPO = pathlib.Path(__file__).resolve().parents[2]
VENV = REPO / "build" / "venv" / "bin"
WIDTH = 80
# Programs with an interface of others, and parts that only their caller starts.
NOT_COMMANDS = {
    "packaging/deb/*/rules": "dpkg-buildpackage runs it",
    "image/mkosi.finalize": "mkosi runs it",
    "image/appliance/usr/lib/itree-backup/smart-alarm": "smartd runs it",
    "kernel/module/mkfs.ext4itree": "options and messages are those of mke2fs",
    "bench/workloads/insn.sh": "runs in a guest",
    "tests/xfstests/guest": "runs in a guest",
    "tests/packages/boot/*": "run in a guest",
    "tests/packages/module/host-work": "runs in a guest",
    "tests/vm/*-without-udev": "run instead of the programs they are named after",
    "tests/core/run.sh": "tests/core/Makefile runs it",
    "tests/tools/roundtrip.py": "test_file_systems.py runs it",
}  # fmt: skip


def programs():
    """The executable scripts that git tracks."""
    lines = subprocess.run(["git", "-C", REPO, "ls-files", "--stage"], check=True, capture_output=True, text=True)
    names = [line.split("\t")[1] for line in lines.stdout.splitlines() if line.startswith("100755")]
    return [n for n in names if (REPO / n).is_file() and (REPO / n).read_bytes()[:2] == b"#!"]


def excused(name):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in NOT_COMMANDS)


COMMANDS = [name for name in programs() if not excused(name)]


def call(name, *words, **kwargs):
    """Run a command as on a terminal of 80 columns, with the Python tools of the build."""
    env = {"COLUMNS": str(WIDTH), "PATH": f"{VENV}:{os.environ['PATH']}"}
    return finished(REPO / name, *words, env=env, stderr=subprocess.PIPE, timeout=120, **kwargs)


def helped(name, *words):
    """The help of a command, which is checked, and of its own commands."""
    res = call(name, *words, "--help")
    assert res.stdout.lower().startswith("usage:") and not res.stderr, res
    assert [line for line in res.stdout.splitlines() if len(line) > WIDTH] == []
    yield res.stdout
    listed = re.search(r"(?ms)^  (?:COMMAND|ACTION)\n(.*?)^\S", res.stdout)
    for command in re.findall(r"(?m)^    ([a-z][a-z-]*)(?: |$)", listed[1]) if listed and not words else ():
        yield from helped(name, command)


def test_excuses_are_needed():
    for pattern in NOT_COMMANDS:
        assert fnmatch.filter(programs(), pattern), f"no program is {pattern}"
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name):
    """--help is usage on standard output, at most 80 columns wide; so is that of each command of a program."""
    pages = list(helped(name))
    assert len(pages) > 5 or not name.endswith("bin/itree-backup"), "the commands were not found"


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage(name):
    """An unknown option ends in exit code 2, with a message on standard error and the name of the program."""
    res = call(name, "--no-such-option", ok=(2,))
    # tests/run leaves the message to pytest, and names itself on its last lines, which are results.
    assert res.stderr and "Traceback" not in res.stderr, res
    assert pathlib.Path(name).name in res.stdout + res.stderr, res


@pytest.mark.parametrize("words", [
    "bench/requests price /nonexistent",
    "docs/site/build --source /nonexistent",
    "image/build --key /nonexistent",
    "image/appliance/usr/bin/itree-backup --config /nonexistent status",
    "image/mkosi.extra/usr/sbin/itree-appliance update --from /nonexistent",
    "kernel/build --base nonexistent",
    "kernel/callees 6.12 nonexistent",
    "kernel/config/configure /nonexistent /nonexistent",
    "kernel/releases --base nonexistent",
    "packaging/advise/itree-advise /nonexistent",
    "packaging/deb/build deb nonexistent",
    "packaging/release/build nonexistent",
    "packaging/series nonexistent",
    "packaging/series --base nonexistent linux",
    "packaging/sources/fetch nonexistent",
    "tests/all nonexistent",
    "tests/run /nonexistent",
    "tests/vm/run --kernel /nonexistent -- true",
    "coreutils-patches/build nonexistent",
])  # fmt: skip
def test_what_does_not_exist_is_named(words):
    """The message has the program, the object, and the reason in words: not Python's number of the error."""
    name, *arguments = words.split()
    res = call(name, *arguments, ok=(1, 2, 125))
    output = res.stdout + res.stderr
    assert re.search(rf"(?m)^{re.escape(pathlib.Path(name).name)}|^{re.escape(name)}", output), output
    assert "nonexistent" in output and not re.search(r"Traceback|\[Errno", output), output
    # A name that the program does not know is wrong usage; a file that is not there need not be.
    assert res.returncode == 2 or "/nonexistent" in words, output
