# SPDX-License-Identifier: GPL-2.0-only
"""e4itree where the kernel cannot help; what it does with one that can is in tests/kernel."""

import errno
import fcntl
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile

import pytest
from conftest import REPO, ROOT, run

HERE = pathlib.Path(__file__).resolve().parent
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
        ([], "build, drop, check, stat, pack or arrange?"),
        (["mend", "."], "unknown command mend"),
        (["build"], "no directory given"),
        (["build", "--min-blocks", "many", "."], "not a number: many"),
        (["build", "--min-blocks", "-1", "."], "not a number: -1"),
        (["build", "--min-blocks", "", "."], "not a number"),
        (["drop", "--force", "."], "for build and pack only"),
        (["check", "--verify", "."], "for stat only"),
        (["stat", "--dry-run", "."], "changes nothing"),
        (["build", "--nonsense", "."], "nonsense"),
        (["build", "--min-files", "3", "."], "for arrange only"),
        (["arrange", "--force", "."], "for build and pack only"),
        (["arrange", "--max-size", "1 M", "."], "not a number: 1 M"),
        (["arrange", "--max-size", "16385", "."], "at most 16384"),
        (["build", "--pace", "20", "."], "for pack only"),
        (["pack", "--pace", "0", "."], "from 1 to 100: 0"),
        (["pack", "--pace", "101", "."], "from 1 to 100: 101"),
        (["pack", "--verify", "."], "for stat only"),
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


def test_pack_says_what_else_there_is(folder):
    code, out = e4itree("pack", folder)
    assert code == 3
    assert f"{folder}: not on ext4, or this kernel cannot pack directories; e2fsck -fD packs those" in out


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


# --- with answers like the kernel's (src/fakeitree.c) ---

STAT, BUILD, DROP, CHECK = range(4)
FORCE, VERIFY = 1, 2


@functools.cache
def fake():
    out = pathlib.Path(tempfile.mkdtemp(prefix="itree-fake-")) / "fake.so"
    argv = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-I", REPO / "kernel" / "fs" / "ext4",
            "-o", out, HERE / "src" / "fakeitree.c", "-ldl"]  # fmt: skip
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert res.returncode == 0, f"fakeitree.c does not compile:\n{res.stderr}"
    return out


@pytest.fixture
def faked(tmp_path):
    """Runs e4itree on one directory; returns (exit code, output, calls as (operation, flags))."""
    folder, log = tmp_path / "folder", tmp_path / "log"
    folder.mkdir()

    def run_it(*args, **settings):
        log.unlink(missing_ok=True)
        env = {**os.environ, "LC_ALL": "C", "LD_PRELOAD": str(fake()), "ITREE_FAKE_LOG": str(log)}
        env |= {f"ITREE_FAKE_{name.upper()}": str(value) for name, value in settings.items()}
        child = subprocess.Popen([ROOT / "sbin" / "e4itree", *args, folder], env=env, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        if settings.get("signal") == int(signal.SIGSTOP):
            for _ in range(settings["eintr"]):
                status = os.waitpid(child.pid, os.WUNTRACED)[1]
                assert os.WIFSTOPPED(status), "did not stop: the test tests nothing"
                os.kill(child.pid, signal.SIGCONT)
        out = child.communicate(timeout=60)[0]
        calls = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
        assert not any(alarm for _, _, alarm in calls), "an alarm was set, which will end the next call"
        return child.returncode, out.replace(str(folder), "DIR"), [call[:2] for call in calls]

    return run_it


# The kernel ends a build for any signal that is pending, be it one that e4itree does not want to end for.
@pytest.mark.parametrize("sig", [0, signal.SIGSTOP, signal.SIGCONT, signal.SIGALRM])
@pytest.mark.parametrize(
    "args, tree, op, flags, says",
    [
        (["build"], "none", BUILD, 0, "built"),
        (["build", "--force"], "good", BUILD, FORCE, "built"),
        (["drop"], "good", DROP, 0, "dropped"),
        (["check"], "good", CHECK, 0, "exact"),
        (["stat", "--verify"], "good", STAT, VERIFY, "tree"),
    ],
)
def test_a_signal_that_does_not_cancel(faked, args, tree, op, flags, says, sig):
    code, out, calls = faked(*args, tree=tree, eintr=3, signal=int(sig))
    assert calls == [(STAT, 0), *[(op, flags)] * 4]
    assert code == 0
    assert out.startswith(f"DIR: {says}, 1234 keys")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("args", [["build"], ["build", "-f"], ["drop"], ["check"], ["stat", "--verify"]])
def test_a_signal_that_cancels(faked, args, sig):
    code, out, calls = faked(*args, tree="none" if args == ["build"] else "good", eintr=1, signal=int(sig))
    assert code == 128 + sig
    assert "cancelled" in out and "0 skipped, 0 failed" in out and "DIR" not in out
    assert len(calls) == 2


def test_a_bad_root_is_built_anew(faked):
    """The kernel, which has not used the tree yet, would keep it if it were not told."""
    code, out, calls = faked("build", tree="bad")
    assert code == 0 and out.startswith("DIR: built, 1234 keys")
    assert calls == [(STAT, 0), (BUILD, FORCE)]


def test_a_good_tree_is_kept(faked):
    code, out, calls = faked("build", tree="good")
    assert (code, out, calls) == (0, "DIR: has a tree already\n", [(STAT, 0)])
    code, out, calls = faked("build", "--force", tree="good")
    assert code == 0 and out.startswith("DIR: built") and calls == [(STAT, 0), (BUILD, FORCE)]


@pytest.mark.parametrize("args", [["build"], ["build", "--json"]])
@pytest.mark.parametrize("tree", ["none", "bad"])
def test_built_is_said_of_good_trees_only(faked, args, tree):
    code, out, _ = faked(*args, tree=tree, built="bad")
    assert code == 1 and "bad magic number" in out and "built" not in out
    code, out, _ = faked(*args, tree=tree, built="gone")
    assert code == 1 and "the tree could not be built" in out


def test_somebody_else_was_first(faked):
    code, out, calls = faked("build", tree="none", built="other")
    assert (code, out, calls) == (0, "DIR: got a tree in the meantime\n", [(STAT, 0), (BUILD, 0)])


@pytest.mark.parametrize(
    "args, says",
    [
        (["build"], "only the directory's owner and root may do this, and not while it is immutable"),
        (["drop"], "only the directory's owner and root may do this, and not while it is immutable"),
        (["check"], "only the directory's owner and root may check it"),
        (["stat", "--verify"], "only the owner and root may use --verify on it"),
    ],
)
def test_what_others_may_not(faked, args, says):
    code, out, _ = faked(*args, tree="none" if args == ["build"] else "good", other=1)
    assert code == 1
    assert out.startswith("e4itree: DIR: the tree could not be ") and out.endswith(f"Operation not permitted: {says}\n")
    assert faked("stat", tree="good", other=1)[0] == 0
