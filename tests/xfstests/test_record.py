# SPDX-License-Identifier: GPL-2.0-only
"""A run of xfstests that was stopped resumes with the tests that are left."""

import pathlib

import pytest
import record
from results import Result

XML = '<testsuite><testcase name="{}"></testcase></testsuite>'
TESTS = ["generic/001", "generic/002", "generic/003"]


@pytest.fixture
def built(tmp_path) -> tuple[pathlib.Path, pathlib.Path]:
    """A kernel with its release beside it, and a directory of tools."""
    kernel, tools = tmp_path / "kernel" / "linux", tmp_path / "tools"
    (tools / "sbin").mkdir(parents=True)
    (tools / "sbin" / "mke2fs").write_text("old")
    kernel.parent.mkdir()
    kernel.write_text("old")
    (kernel.parent / "release").write_text("6.12.1\n")
    (kernel.parent / "config").write_text("old")
    return kernel, tools


def report(start: pathlib.Path, test: str) -> None:
    """What the suite writes when a test has passed."""
    (start / "results").mkdir()
    (start / "results" / "result.xml").write_text(XML.format(test))


def test_run_resumes_with_its_results_kernel_and_tools(tmp_path, built):
    kernel, tools = built
    first = record.Record(tmp_path / "run" / "4k")
    assert not first.begin(kernel, tools, "v1", TESTS, fresh=False)
    report(first.new_start("itree"), TESTS[0])
    assert first.took(10.5) == 10
    # A run in progress ignores a newer kernel and newer tools.
    kernel.write_text("new")
    (kernel.parent / "config").write_text("new")
    (tools / "sbin" / "mke2fs").write_text("new")
    again = record.Record(first.base)
    assert again.begin(kernel, tools, "v1", TESTS, fresh=False)
    assert again.done("itree") == {TESTS[0]: Result("passed")}
    assert again.done("stock") == {}
    copies = (again.kernel, again.kernel.with_name("config"), again.e2fsprogs / "sbin" / "mke2fs")
    assert [path.read_text() for path in copies] == ["old"] * 3
    assert again.begun()["release"] == "6.12.1"
    assert again.took(10) == 20


def test_run_of_another_list_is_kept(tmp_path, built):
    one = record.Record(tmp_path / "run" / "4k")
    one.begin(*built, "v1", TESTS, fresh=False)
    report(one.new_start("itree"), TESTS[0])
    for version, tests, what in (("v2", TESTS, "version"), ("v1", TESTS[:2], "tests")):
        with pytest.raises(record.Differs, match=what):
            one.begin(*built, version, tests, fresh=False)
    assert one.done("itree")
    assert not one.begin(*built, "v2", TESTS, fresh=True)
    assert one.done("itree") == {}


def test_run_stopped_while_it_began_starts_again(tmp_path, built):
    one = record.Record(tmp_path / "run" / "4k")
    one.base.mkdir(parents=True)
    one.kernel.write_text("half of a ke")
    assert not one.begin(*built, "v1", TESTS, fresh=False)
    assert one.kernel.read_text() == "old"


def test_test_that_killed_its_guest_keeps_that_result(tmp_path):
    one = record.Record(tmp_path)
    died = one.new_start("stock")
    report(died, TESTS[0])
    one.died(died, TESTS[1], "the guest died")
    for test in TESTS[1:]:
        report(one.new_start("stock"), test)
    assert [path.name for path in one.starts("stock")] == ["start-0", "start-1", "start-2"]
    states = {test: result.state for test, result in one.done("stock").items()}
    assert states == {TESTS[0]: "passed", TESTS[1]: "died", TESTS[2]: "passed"}


def test_guests_are_in_the_order_of_their_numbers(tmp_path):
    one = record.Record(tmp_path)
    names = [one.new_start("itree").name for _ in range(12)]
    assert names[-1] == "start-11"
    assert [path.name for path in one.starts("itree")] == names
