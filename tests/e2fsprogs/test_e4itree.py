# SPDX-License-Identifier: GPL-2.0-only
"""e4itree where the kernel cannot help; what it does with one that can is in tests/kernel."""

import errno
import fcntl
import json
import os
import re
import subprocess

import pytest
from conftest import ROOT, run

EXT4_IOC_ITREE = 0xC0F06660


def e4itree(*args, **kw):
    return run("e4itree", *args, ok=None, **kw)


@pytest.fixture
def folder(tmp_path):
    """A directory where the ioctl is unknown."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_ITREE, bytearray(240), True)
        pytest.skip("the temporary directory is on a file system that knows itrees")
    except OSError as err:
        if err.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            pytest.skip("the temporary directory is on a file system that knows itrees")
    finally:
        os.close(fd)
    return tmp_path


def test_help_names_every_option_and_exit_code():
    code, out = e4itree("--help")
    assert code == 0
    for word in ("--recursive", "--min-blocks", "--force", "--verify", "--dry-run", "--verbose", "--quiet",
                 "--progress", "--json", "--version", "Exit code"):  # fmt: skip
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_version():
    code, out = e4itree("-V")
    assert code == 0
    assert re.match(r"e4itree \d+\.\d+", out)


@pytest.mark.parametrize(
    "args, says",
    [
        ([], "build, drop, check or stat?"),
        (["mend", "."], "unknown command mend"),
        (["build"], "no directory given"),
        (["build", "--min-blocks", "many", "."], "not a number: many"),
        (["build", "--min-blocks", "-1", "."], "not a number: -1"),
        (["build", "--min-blocks", "", "."], "not a number"),
        (["drop", "--force", "."], "for build only"),
        (["check", "--verify", "."], "for stat only"),
        (["stat", "--dry-run", "."], "changes nothing"),
        (["build", "--nonsense", "."], "nonsense"),
    ],
)
def test_wrong_usage(args, says):
    code, out = e4itree(*args)
    assert code == 2
    assert says in out and "--help" in out


@pytest.mark.parametrize("op", ["build", "drop", "check", "stat"])
def test_a_kernel_or_file_system_that_knows_nothing(folder, op):
    code, out = e4itree(op, folder)
    assert code == 3
    assert out.splitlines() == [f"e4itree: {folder}: not on ext4, or this kernel does not know itrees"]


def test_recursive_gives_up_at_once(folder):
    for name in "abc":
        (folder / name).mkdir()
    code, out = e4itree("build", "-r", folder)
    assert code == 3
    assert out.count("does not know itrees") == 1
    assert "1 directories: 0 built" in out


def test_what_cannot_be_opened(folder):
    (folder / "file").touch()
    code, out = e4itree("stat", folder / "file", folder / "nothing", folder)
    assert code == 1
    assert f"{folder}/file: cannot be opened: Not a directory" in out
    assert f"{folder}/nothing: cannot be opened: No such file or directory" in out
    assert f"{folder}: not on ext4" in out


def test_json_can_tell_every_name(folder):
    names = [b"plain", b'quote " and \\', b"new\nline\ttab\x01", "süß €".encode(), b"\xff\xfe bad \xc3",
             b"\xed\xa0\x80", b"\xc0\xaf", "\U0001f333".encode()]  # fmt: skip
    for name in names:
        path = os.fsencode(folder) + b"/" + name
        os.mkdir(path)
        code, out = e4itree("stat", "--json", os.fsdecode(path))
        assert code == 3
        lines = [x for x in out.splitlines() if x.startswith("{")]
        first, last = map(json.loads, lines)
        assert os.fsencode(first["path"]) == path
        assert (first["op"], first["result"], first["errno"]) == ("stat", "lacking", errno.ENOTTY)
        assert last["summary"] is True and last["lacking"] == 1 and last["cancelled"] is False


def test_no_output_no_success():
    with open("/dev/full", "w") as full:
        res = subprocess.run([ROOT / "sbin" / "e4itree", "--help"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert res.returncode != 0


def test_man_page_has_every_option():
    page = (ROOT / "share" / "man" / "man8" / "e4itree.8").read_text().replace("\\", "")
    out = e4itree("--help")[1]
    options = set(re.findall(r"--[a-z][a-z-]+", out))
    assert len(options) >= 10
    for option in options:
        assert option in page, option
