# SPDX-License-Identifier: GPL-2.0-only
"""The tools' own test suites, and the command that compares them."""

import os

import pytest
import treebuild as tb
from conftest import HERE, run


@pytest.fixture(scope="module")
def check():
    return tb.load_script(HERE / "upstream-check")


def test_reads_what_the_suites_print(check):
    text = """
  1: tar version                                     ok
233: capabilities: binary store/restore              FAILED (capabs_raw01.at:28)
 10: selinux                                         skipped (selnx01.at:31)
 11: known                                           expected failure (x.at:1)
"""
    assert check.tar_results(text) == {
        "1 tar version": "PASS",
        "233 capabilities: binary store/restore": "FAIL",
        "10 selinux": "SKIP",
        "11 known": "XFAIL",
    }
    text = "PASS    00-hello\nSKIP    acls-default (I don't know)\nFAIL    chown\n----- chown log follows\n"
    assert check.rsync_results(text) == {"00-hello": "PASS", "acls-default": "SKIP", "chown": "FAIL"}
    text = "PASS: tests/ls/a.sh\nFAIL: tests/cp/b.sh\n# PASS:  1\nERROR: tests/rm/c.pl\n"
    assert check.coreutils_results(text) == {
        "tests/ls/a.sh": "PASS",
        "tests/cp/b.sh": "FAIL",
        "tests/rm/c.pl": "ERROR",
    }


@pytest.mark.parametrize(
    ("before", "after", "known", "broken", "result"),
    [
        ("PASS", "PASS", (), False, ""),
        ("PASS", "FAIL", (), True, "patched FAIL"),
        ("PASS", "FAIL", ("a 1",), True, "patched FAIL"),
        ("PASS", None, (), True, "did not run"),
        ("PASS", "SKIP", (), True, "patched SKIP"),
        ("FAIL", "FAIL", (), False, "upstream-failures"),
        ("FAIL", "FAIL", ("a 1",), False, ""),
        ("FAIL", "PASS", ("a 1",), False, "patched PASS"),
        ("SKIP", "PASS", (), False, "patched PASS"),
    ],
)
def test_compares(check, before, after, known, broken, result):
    sides = [{"b 2": "PASS"} | ({"a 1": status} if status else {}) for status in (before, after)]
    lines, worse = check.compare("tar", *sides, set(known))
    assert worse == broken and result in "".join(lines) and bool(lines) == bool(result)


@pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="the suites take half an hour: ITREE_FULL=1")
@pytest.mark.parametrize("tool", ["tar", "rsync", "coreutils"])
def test_nothing_fails_that_does_not_fail_unpatched(tool):
    text = run(HERE / "upstream-check", tool, timeout=3000)
    assert f"{tool}: patched:" in text
    assert "upstream-failures" not in text, text
