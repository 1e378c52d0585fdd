# SPDX-License-Identifier: GPL-2.0-only
"""e2fsprogs' own test suite: our tests in its style one by one, then all of it, in both ways of tests/upstream."""

import pytest
import suite


@pytest.fixture(scope="session")
def plain():
    return suite.Suite(suite.build_ours())


@pytest.mark.parametrize("name", suite.our_tests())
def test_ours(plain, name):
    result, text = plain.run(name)
    if result == "skipped":
        pytest.skip(text.strip())
    assert result == "ok", text


def test_each_tells_what_it_tests():
    for name in suite.our_tests():
        lines = (suite.OURS / name / "name").read_text().splitlines()
        assert len(lines) == 1 and lines[0].strip(), f"{name}/name is to have one line"


def test_second_runs_are_clean():
    """Of the tests that have e2fsck repair something, all but the one that asks it not to."""
    seen = 0
    for path in suite.OURS.glob("*/expect.2"):
        text = path.read_text()
        seen += 1
        if path.parent.name == "f_itree_no":
            assert "Exit status is 4" in text
        else:
            assert "Exit status is 0\n" in text and "MODIFIED" not in text, path
    assert seen > 40


LIST = {("plain", "a"): "reason 1", ("machine", "m"): "reason 2", ("features", "f"): "reason 3"}
GOOD = {"a": ("failed", ""), "b": ("ok", ""), "m": ("failed", ""), "f": ("ok", ""), "s": ("skipped", "x: skipped")}


@pytest.mark.parametrize(
    "mode, change, bad",
    [
        ("plain", {}, []),
        ("plain", {"m": ("ok", "")}, []),
        ("plain", {"a": ("ok", "")}, ["a"]),
        ("plain", {"a": ("skipped", "")}, []),
        ("plain", {"b": ("failed", "")}, ["b"]),
        ("plain", {"f": ("features", "")}, ["f"]),
        ("plain", {"p": ("failed", "")}, []),
        ("plain", {"q": ("failed", "")}, ["q"]),
        ("itree", {}, ["a", "f"]),
        ("itree", {"a": ("ok", ""), "f": ("features", "")}, []),
        ("itree", {"a": ("ok", ""), "f": ("failed", "")}, ["f"]),
        ("itree", {"a": ("ok", ""), "f": ("skipped", "")}, []),
        ("itree", {"a": ("ok", ""), "f": ("features", ""), "b": ("features", "")}, ["b"]),
    ],
)
def test_differences_are_told_apart(mode, change, bad):
    assert list(suite.judge({**GOOD, **change}, mode, LIST, {"p"})[0]) == bad


@pytest.mark.parametrize(
    "diff, only",
    [
        ("--- a\n+++ b\n@@ -1 +1 @@\n-features: x\n+features: x itree\n same\n", True),
        ("--- a\n+++ b\n@@ -1 +1 @@\n-features: x\n+features: y itree\n", False),
        ("--- a\n+++ b\n@@ -1 +1 @@\n-features: x\n+features: x itree\n+more\n", False),
        ("--- a\n+++ b\n@@ -1 +1 @@\n-features: x\n", False),
        ("\n", False),
    ],
)
def test_feature_lines_are_told_apart(diff, only):
    assert suite.feature_lines_only(diff) is only


@pytest.mark.parametrize("line", ["plain f_dup", "some f_dup a reason", "plain f_dup short"])
def test_list_needs_reasons(tmp_path, line):
    path = tmp_path / "list"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(suite.tb.BuildError):
        suite.read_listed(path)


@pytest.mark.parametrize("mode", ["plain", "itree"])
def test_whole_suite(mode):
    what = suite.Suite(suite.build_ours(), mode == "itree")
    names = what.tests() + (list(suite.UNITS) if mode == "plain" else [])
    assert len(names) > 500
    bad, _ = suite.judge(what.run_all(names, int(suite.tb.jobs()), lambda *_: None), mode, suite.read_listed())
    assert not bad, "\n".join(f"{name}: {why}" for name, why in bad.items())
