# SPDX-License-Identifier: GPL-2.0-only
"""The mails for each project apply to its release, the fixes alone, and end in what our build makes."""

import os
import pathlib
import shutil
import subprocess

import pytest
import series
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]
FULL = os.environ.get("ITREE_FULL") == "1"
PROGRAM = tb.load_script(REPO / "packaging" / "series")
KERNEL = PROGRAM.KERNEL
CASES = [*(("linux", b) for b in (KERNEL.bases() if FULL else [e.series for e in KERNEL.ends()])),
         *((name, None) for name in PROGRAM.NAMES if name != "linux")]  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(filter(None, case)))
def case(request):
    return request.param


@pytest.fixture(scope="module")
def project(case):
    return PROGRAM.project_of(*case)


@pytest.fixture(scope="module")
def out(case, tmp_path_factory):
    """Where the program has written the mails of a project."""
    name, base = case
    out = tmp_path_factory.mktemp("series")
    argv = [REPO / "packaging" / "series", name, *(["--base", base] if base else []), "--out", out]
    subprocess.run(argv, check=True, capture_output=True)
    return out / name


def git(repo, *argv):
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    config = ["-c", "user.name=test", "-c", "user.email=test@test.invalid"]
    return subprocess.run(["git", *config, "-C", repo, *argv], check=True, capture_output=True, text=True, env=env)


def mails(out, half):
    return sorted((out / half).glob("*.patch"))


def test_applies_and_is_what_we_build(project, out, tmp_path):
    steps = series.read_steps(project)
    release, repo = tmp_path / "release", tmp_path / "repo"
    release.mkdir()
    project.unpack(series.released(steps), release)
    shutil.copytree(release, repo)
    git(repo, "init", "-q")
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-q", "-m", "release")
    number = 0
    for half in ("fixes", "feature"):
        if letters := mails(out, half):
            git(repo, "am", "-q", *letters[1:])
            number += len(letters) - 1
    assert number == len(steps) == len(git(repo, "log", "--oneline").stdout.splitlines()) - 1

    tree = tb.Tree("test", tmp_path / "laid")
    tree.unpack("release", lambda dest: shutil.copytree(release, dest, dirs_exist_ok=True))
    tree.lay(project.overlay, project.patches, project.release)
    built = {*project.overlay, *(t for p in project.patches for t in tb.patch_targets(p))}
    assert len(built) >= 7
    for rel in built:
        assert (repo / rel).read_bytes() == (tree.tree / rel).read_bytes(), rel


def test_cover_letters_are_filled_in(out):
    halves = [half for half in ("fixes", "feature") if mails(out, half)]
    assert "feature" in halves
    for half in halves:
        text = mails(out, half)[0].read_text()
        head, body = text.split("\n\n", 1)
        assert "Subject: [PATCH" in head and "\nTo: " in head
        assert "***" not in text and "@" not in body.split("The itree founders (")[0]
        assert "SPDX" not in body.split(" files changed")[0]


def test_mails_are_not_too_long_for_lists(out):
    sizes = {m.name: m.stat().st_size for half in ("fixes", "feature") for m in mails(out, half)}
    assert sizes and {name: size for name, size in sizes.items() if size > 80_000} == {}


def test_each_fix_says_how_to_see_it_fail(out):
    for mail in mails(out, "fixes")[1:]:
        text = mail.read_text(errors="replace").split("\n---\n")[0]
        assert "To see it fail with" in text or "fails on this script with" in text, mail.name


def test_all_four_projects_and_linux_are_there():
    assert set(PROGRAM.NAMES) == {"linux", "e2fsprogs", "tar", "rsync", "coreutils"}
    for name in ("linux", "e2fsprogs"):
        assert series.read_list(PROGRAM.project_of(name))["fixes"]


# A project of two files, to make mistakes in

RELEASE = {"a.c": "one\ntwo\nthree\n", "b.c": "b\nk\nk\nk\nt\nk\nk\nk\nt\nk\nk\nk\n"}
MAIL = """From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Test <test@test.invalid>
Date: Sat, 28 Nov 2026 12:00:00 +0000
Subject: [PATCH] {subject}

{body}

Signed-off-by: Test <test@test.invalid>

---
{diff}"""
FIX = "--- a/a.c\n+++ b/a.c\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
FEATURE = "--- a/a.c\n+++ b/a.c\n@@ -1,3 +1,4 @@\n one\n 2\n three\n+four\n"
LIST = """
[[fixes]]
patch = "1.patch"
check = "false"

[[feature]]
patch = "2.patch"
files = ["new.[ch]"]
"""


class Small:
    def __init__(self, top):
        self.top, self.upstream, self.out = top, top / "upstream", top / "out"
        self.upstream.mkdir()
        self.patches = [top / "1.patch", top / "2.patch"]
        for path, diff in zip(self.patches, (FIX, FEATURE), strict=True):
            path.write_text(MAIL.format(subject=f"change {path.stem}", body="Why.", diff=diff))
        self.overlay = {name: top / name for name in ("new.c", "new.h")}
        for name, path in self.overlay.items():
            path.write_text(name + "\n")
        self.list(LIST)
        for half in ("fixes", "feature"):
            number = {"fixes": 1, "feature": 2}[half]
            (self.upstream / f"{half}.txt").write_text(f"SPDX\n\nthe {half}\n\nMail @{number}@.\n")

    def list(self, text):
        (self.upstream / "series.toml").write_text(text)

    def unpack(self, paths, dest):
        for name in set(paths) & set(RELEASE):
            (dest / name).write_text(RELEASE[name])

    def write(self):
        number = len(list(self.top.glob("scratch*")))
        project = series.Project("small", "small 1", self.upstream, self.patches, self.overlay, self.unpack)
        series.write(project, self.out, self.top / f"scratch{number}")

    def refuses(self, says):
        with pytest.raises(tb.BuildError, match=says):
            self.write()
        assert not self.out.exists()


@pytest.fixture
def small(tmp_path):
    return Small(tmp_path)


def test_a_small_series(small):
    small.write()
    fix, feature = mails(small.out, "fixes"), mails(small.out, "feature")
    assert [m.name for m in fix[1:]] == ["0001-change-1.patch"]
    assert [m.name for m in feature[1:]] == ["0001-change-2.patch"]
    assert "    false\n\nSigned-off-by: Test" in fix[1].read_text()
    assert "+new.c" in feature[1].read_text() and "+new.h" in feature[1].read_text()
    assert "Subject: [PATCH 0/1] the feature" in feature[0].read_text() and "Mail 1." in feature[0].read_text()
    # Again, and mails of the run before are gone.
    (small.out / "fixes" / "0009-old.patch").write_text("")
    small.write()
    assert mails(small.out, "fixes") == fix


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('patch = "2.patch"\n', 'patch = "3.patch"\n', "there is no patch 3.patch"),
        ("new.[ch]", "new.c", "does not name new.h"),
        ("[[feature]]", '[[feature]]\npatch = "1.patch"\n[[feature]]', "names twice: 1.patch"),
        ("new.[ch]", "new.x", "no file of ours is new.x"),
        ('check = "false"', "", "a way to see it fail"),
        ('check = "false"', 'chekc = "false"', "chekc"),
        ("[[fixes]]", "[[fixes]", "cannot read"),
    ],
)
def test_a_wrong_list_is_refused(small, old, new, says):
    assert old in LIST
    small.list(LIST.replace(old, new))
    small.refuses(says)


def test_a_fix_that_needs_the_feature_is_refused(small):
    small.list(LIST.replace("1.patch", "X").replace("2.patch", "1.patch").replace("X", "2.patch"))
    small.refuses(r"2\.patch does not apply among the fixes")


def test_mails_that_end_in_another_tree_are_refused(small):
    """A message for the lists alone that changes a file which our build changes, too."""
    diff = "--- a/a.c\n+++ b/a.c\n@@ -2,3 +2,3 @@\n 2\n three\n-four\n+4\n"
    (small.upstream / "more.patch").write_text(MAIL.format(subject="more", body="Why.", diff=diff))
    small.list(LIST + '\n[[feature]]\npatch = "more.patch"\n')
    small.refuses("mails only")


def test_an_order_with_another_outcome_is_refused(small):
    """Either patch changes the first of two equal lines that it meets."""
    for path, line in zip(small.patches, "xy", strict=True):
        diff = f"--- a/b.c\n+++ b/b.c\n@@ -2,7 +2,7 @@\n k\n k\n k\n-t\n+{line}\n k\n k\n k\n"
        path.write_text(MAIL.format(subject="a line", body="Why.", diff=diff))
    small.write()
    shutil.rmtree(small.out)
    small.list(LIST.replace('"1', '"x').replace('"2', '"1').replace('"x', '"2'))
    small.refuses("after the mails, b.c is not what our build makes")


def test_a_missing_cover_letter_is_named(small):
    (small.upstream / "fixes.txt").unlink()
    small.refuses("fixes.txt is missing")


def test_a_cover_letter_that_names_no_mail_is_refused(small):
    (small.upstream / "feature.txt").write_text("SPDX\n\nsubject\n\nMail @7@.\n")
    small.refuses("@7@ names 0 mails of the feature")


@pytest.mark.parametrize(
    ("body", "new", "says"),
    [("Why.", "x\n" * 50_000, "lists take 80,000"), ("long " * 30, "new.c\n", "longer than 80 columns")],
    ids=["size", "columns"],
)
def test_a_mail_that_a_list_would_not_take_is_refused(small, body, new, says):
    small.patches[1].write_text(MAIL.format(subject="change 2", body=body, diff=FEATURE))
    small.overlay["new.c"].write_text(new)
    small.refuses(says)


def test_a_release_without_the_file_is_named(small):
    small.patches[0].write_text(MAIL.format(subject="c", body="Why.", diff=FIX.replace("a.c", "c.c")))
    small.refuses("small 1 has no c.c")


def test_other_files_are_not_swept_away(small):
    small.out.mkdir()
    (small.out / "thesis.txt").write_text("mine")
    with pytest.raises(tb.BuildError, match="holds other files"):
        small.write()
    assert (small.out / "thesis.txt").read_text() == "mine"


def test_an_unknown_project_is_an_error():
    argv = [REPO / "packaging" / "series", "emacs"]
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert res.returncode == 2 and "no project emacs" in res.stderr


@pytest.mark.skipif(not FULL, reason="compiles fs/ext4 and e2fsprogs after each mail; ITREE_FULL=1 runs it")
def test_each_patch_builds(case, tmp_path):
    name, base = case
    if name not in ("linux", "e2fsprogs"):
        pytest.skip("the tools' patches need a library that is built by hand")
    argv = [REPO / "packaging" / "series", name, *(["--base", base] if base else []), "--check", "--out", tmp_path]
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert res.returncode == 0, res.stderr
    count = sum(len(mails(tmp_path / name, half)) - 1 for half in ("fixes", "feature"))
    assert res.stderr.count(" builds: ") == count
