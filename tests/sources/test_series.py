# SPDX-License-Identifier: GPL-2.0-only
"""The series for the mailing list is what kernel/build lays over the source."""

import os
import pathlib
import shutil
import subprocess

import pytest
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]
FULL = os.environ.get("ITREE_FULL") == "1"


@pytest.fixture
def script():
    return tb.load_script(REPO / "kernel" / "series")


@pytest.fixture(scope="module")
def kernel():
    return tb.load_script(REPO / "kernel" / "build")


BASES = list(tb.load_script(REPO / "kernel" / "build").bases())


@pytest.fixture(scope="module", params=BASES)
def base(request, kernel):
    return kernel.base_of(request.param)


@pytest.fixture(scope="module")
def mails(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("series") / "mails"
    subprocess.run([REPO / "kernel" / "series", "--base", base.series, "--out", out], check=True, capture_output=True)
    return sorted(out.iterdir())


def git(repo, *argv):
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    config = ["-c", "user.name=test", "-c", "user.email=test@test.invalid"]
    return subprocess.run(["git", *config, "-C", repo, *argv], check=True, capture_output=True, text=True, env=env)


def test_applies_and_is_what_we_build(mails, script, kernel, base, tmp_path):
    steps = script.read_steps(base)
    laid = kernel.tree_of(base)
    git(tmp_path, "init", "-q", "linux")
    repo = tmp_path / "linux"
    touched = sorted({t for patch, _ in steps for t in script.targets_of(patch)})
    for rel in touched:
        (repo / rel).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(script.pristine(rel, laid), repo / rel)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "base")
    git(repo, "am", "-q", *mails[1:])
    new = [f for _, files in steps for f in files if f.startswith("fs/")]
    assert len(new) == len(base.overlay())
    for rel in [*new, *(t for t in touched if not t.startswith("Documentation/"))]:
        assert (repo / rel).read_bytes() == (laid / rel).read_bytes(), rel
    assert len(git(repo, "log", "--oneline").stdout.splitlines()) == len(steps) + 1


def test_cover_letter_is_filled_in(mails):
    text = mails[0].read_text()
    assert "Subject: [PATCH 00/" in text and "***" not in text
    assert "SPDX" not in text.split("\n\n", 1)[1].split(" fs/ext4/")[0]


def test_no_diff_adds_more_than_a_reviewer_reads(mails):
    assert {m.name: m.stat().st_size for m in mails if m.stat().st_size > 80_000} == {}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t.replace(" fs/ext4/itree_bulk.c", ""), "does not name fs/ext4/itree_bulk.c"),
        (lambda t: t.replace("0009-ext4-support-the-itree.patch\n", ""), "does not name 0009-"),
        (lambda t: t + "0009-ext4-support-the-itree.patch fs/ext4/itree_bulk.c\n", "names twice: fs/ext4/itree_bulk.c"),
        (lambda t: t + "0099-no-such.patch\n", "no patch 0099-no-such.patch"),
    ],
)
def test_what_is_forgotten_is_named(script, kernel, tmp_path, edit, says):
    before = (script.UPSTREAM / "series").read_text()
    shutil.copytree(script.UPSTREAM, tmp_path / "upstream")
    script.UPSTREAM = tmp_path / "upstream"
    (script.UPSTREAM / "series").write_text(edit(before))
    assert edit(before) != before
    with pytest.raises(tb.BuildError, match=says):
        script.read_steps(kernel.base_of())


def test_other_files_are_not_swept_away(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    res = subprocess.run([REPO / "kernel" / "series", "--out", tmp_path], capture_output=True, text=True, check=False)
    assert res.returncode != 0 and "holds other files" in res.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.skipif(not FULL, reason="compiles fs/ext4 fifteen times; ITREE_FULL=1 runs it")
def test_each_patch_builds(base, tmp_path):
    argv = [REPO / "kernel" / "series", "--base", base.series, "--check", "--out", tmp_path / "mails"]
    res = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert res.returncode == 0, res.stderr
    assert res.stderr.count(" builds: ") == len(list((tmp_path / "mails").iterdir())) - 1
