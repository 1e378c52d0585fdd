# SPDX-License-Identifier: GPL-2.0-only
"""How results of xfstests are read and compared."""

import results
from results import Result

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="xfstests" failures="1" skipped="1" tests="3" time="9">
<testcase classname="xfstests.global" name="generic/001" time="3"></testcase>
<testcase classname="xfstests.global" name="generic/002" time="0"><skipped message="needs reflink" /></testcase>
<testcase classname="xfstests.global" name="generic/003" time="6">
<failure message="output mismatch" type="TestFail" /></testcase>
</testsuite>
"""
CHECK = """FSTYP         -- ext4
PLATFORM      -- Linux/x86_64 guest 6.12.117

generic/001        3s
generic/002        [not run] needs reflink
generic/003       - output mismatch (see generic/003.out.bad)
    --- generic/003.out
    generic/999 is no start of a line
generic/004       """
LOG = """[   1.0] EXT4-fs (ubda): mounted filesystem
[   2.0] EXT4-fs warning (device ubdb): itree block 7 of directory 12 cannot be read
[   3.0] run fstests generic/475 at 2026-11-26 10:00:00
[   4.0] EXT4-fs warning (device ubdb): itree block 9 of directory 12 cannot be read
[   5.0] EXT4-fs error (device ubdb): ext4_find_entry: reading directory lblock 0
"""


def test_report_is_read(tmp_path):
    (tmp_path / "section").mkdir()
    (tmp_path / "section" / "result.xml").write_text(REPORT)
    assert results.read(tmp_path) == {
        "generic/001": Result("passed"),
        "generic/002": Result("notrun", "needs reflink"),
        "generic/003": Result("failed", "output mismatch"),
    }


def test_report_cut_short_gives_nothing(tmp_path):
    (tmp_path / "result.xml").write_text(REPORT[:200])
    assert results.read(tmp_path) == {}


def test_running_is_the_last_test_named(tmp_path):
    (tmp_path / "check.out").write_text(CHECK)
    assert results.running(tmp_path / "check.out") == "generic/004"
    assert results.running(tmp_path / "none") is None


def test_group_takes_both_directories(tmp_path):
    for name, text in {
        "generic": "# made by mkgroupfile\n001 rw auto quick\n002 fuzzers\n", "ext4": "003 auto\n004 automatic\n",
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "group.list").write_text(text)
    assert results.group(tmp_path, "auto") == ["generic/001", "ext4/003"]


def test_lines_about_trees_name_their_test(tmp_path):
    (tmp_path / "kernel.log").write_text(LOG)
    lines = results.tree_lines(tmp_path / "kernel.log")
    assert [line.split(":")[0] for line in lines] == ["before the first test", "generic/475"]


def test_comparison_tells_whose_failure_it_is():
    good, bad = Result("passed"), Result("failed", "mismatch")
    none, dead = Result("notrun", "why"), Result("died", "oops")
    itree = {"a": good, "b": bad, "c": bad, "d": good, "e": none, "f": none, "g": dead, "h": good}
    stock = {"a": good, "b": bad, "c": good, "d": bad, "e": none, "f": good, "g": good, "h": none}
    found = results.compare(itree, stock, [*itree, "i"])
    assert found.passed == ["a"]
    # "i": no guest gave a result of it, which is no pass.
    assert set(found.both) == {"b", "i"}
    assert set(found.alone) == {"c", "f", "g"}
    assert set(found.stock_alone) == {"d", "h"}
    assert set(found.notrun) == {"e"}
    assert found.ran == 8
    assert any("c FAILS WITH THE FEATURE ALONE: mismatch" in line for line in found.lines())
    assert results.table([("4k", found, 125)])[2] == "| 4k | 8 | 1 | 1 | 2 | 2 | 3 | 2 |"
