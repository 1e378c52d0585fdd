# SPDX-License-Identifier: GPL-2.0-only
"""Laying overlay and patches over a pristine tree without needless rebuilds."""

import os

import pytest
import treebuild as tb

PATCH = """\
 a patch
--- a/one.c
+++ b/one.c
@@ -1,3 +1,4 @@
 int a;
+int added;
 int b;
 int c;
"""
NEW_FILE = "--- /dev/null\n+++ b/sub/new.c\n@@ -0,0 +1 @@\n+int made;\n"


@pytest.fixture
def tree(tmp_path):
    def unpack(dest):
        (dest / "one.c").write_text("int a;\nint b;\nint c;\n")
        (dest / "two.c").write_text("int two;\n")

    made = tb.Tree("test", tmp_path / "tree")
    made.unpack("source 1", unpack)
    for path in made.tree.iterdir():
        os.utime(path, (1000, 1000))
    return made


def series(tmp_path, **patches):
    out = []
    for name, text in patches.items():
        (tmp_path / f"{name}.patch").write_text(text)
        out.append(tmp_path / f"{name}.patch")
    return out


def stamps(tree):
    return {p.name: p.stat().st_mtime for p in tree.tree.rglob("*.c")}


def test_patch_and_overlay_are_laid(tree, tmp_path):
    (tmp_path / "ours.c").write_text("int ours;\n")
    overlay = {"sub/ours.c": tmp_path / "ours.c"}
    assert tree.lay(overlay, series(tmp_path, p=PATCH, q=NEW_FILE), "release 1")
    assert "int added;" in (tree.tree / "one.c").read_text()
    assert (tree.tree / "sub/ours.c").read_text() == "int ours;\n"
    assert (tree.tree / "sub/new.c").read_text() == "int made;\n"
    assert stamps(tree)["two.c"] == 1000


def test_nothing_new_touches_nothing(tree, tmp_path):
    patches = series(tmp_path, p=PATCH)
    tree.lay({}, patches, "release 1")
    os.utime(tree.tree / "one.c", (2000, 2000))
    assert not tree.lay({}, patches, "release 1")
    assert stamps(tree)["one.c"] == 2000


def test_changed_series_starts_from_the_pristine_file(tree, tmp_path):
    tree.lay({}, series(tmp_path, p=PATCH), "release 1")
    tree.lay({}, series(tmp_path, p=PATCH.replace("added", "other")), "release 1")
    assert (tree.tree / "one.c").read_text() == "int a;\nint other;\nint b;\nint c;\n"


def test_dropped_files_go_and_dropped_patches_are_undone(tree, tmp_path):
    tree.lay({}, series(tmp_path, p=PATCH, q=NEW_FILE), "release 1")
    assert tree.lay({}, [], "release 1")
    assert (tree.tree / "one.c").read_text() == "int a;\nint b;\nint c;\n"
    assert not (tree.tree / "sub/new.c").exists()


def test_patch_that_does_not_apply_is_named_with_the_release(tree, tmp_path):
    bad = series(tmp_path, broken=PATCH.replace("int b;", "int x;"))
    with pytest.raises(tb.BuildError) as err:
        tree.lay({}, bad, "release 1")
    assert "broken.patch" in str(err.value) and "release 1" in str(err.value) and "int added;" in str(err.value)
    assert (tree.tree / "one.c").read_text() == "int a;\nint b;\nint c;\n"


def test_fuzz_is_refused(tree, tmp_path):
    fuzzy = PATCH.replace(" int b;\n int c;\n", " int b;\n int C;\n")
    with pytest.raises(tb.BuildError, match="does not apply"):
        tree.lay({}, series(tmp_path, fuzzy=fuzzy), "release 1")


def test_new_source_is_unpacked_afresh_and_the_same_is_kept(tree, tmp_path):
    tree.lay({}, series(tmp_path, p=PATCH), "release 1")
    tree.unpack("source 1", lambda dest: pytest.fail("unpacked again"))
    tree.unpack("source 2", lambda dest: (dest / "one.c").write_text("new\n"))
    assert (tree.tree / "one.c").read_text() == "new\n" and not tree.pristine.exists()


def test_series_names_a_missing_patch(tmp_path):
    (tmp_path / "series").write_text("# ours\nnone.patch\n")
    with pytest.raises(tb.BuildError, match="line 2: there is no patch none.patch"):
        tb.read_series(tmp_path)


def test_patch_outside_the_tree_is_refused(tmp_path):
    (evil,) = series(tmp_path, evil="--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+x\n")
    with pytest.raises(tb.BuildError, match="not a -p1 path"):
        tb.patch_targets(evil)


def test_cache_gives_back_what_was_put_and_only_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    cache, key = tb.Cache("kind"), "0" * 64
    src, dst = tmp_path / "src", tmp_path / "dst"
    src.mkdir()
    (src / "a").write_text("A")
    (src / "b").mkdir()
    (src / "b" / "c").write_text("C")
    assert not cache.get(key, dst, ("a", "b"))
    cache.put(key, src, ("a", "b"))
    assert cache.get(key, dst, ("a", "b")) and (dst / "b" / "c").read_text() == "C"
    assert not cache.get(key, dst, ("a", "more"))


def test_inputs_tell_apart_what_differs(tmp_path):
    (tmp_path / "f").write_text("x")

    def key(label="one", text="1"):
        inputs = tb.Inputs("kind")
        inputs.text(label, text)
        inputs.file("f", tmp_path / "f")
        return inputs.key()

    first = key()
    assert first == key() and first != key(text="2") and first != key(label="two")
    (tmp_path / "f").write_text("y")
    assert first != key()


def test_failing_step_shows_the_end_of_its_log(tmp_path):
    log = tb.Log("test", tmp_path / "log")
    with pytest.raises(tb.BuildError) as err:
        log.run(["sh", "-c", "echo 'x.c:1: error: no such thing'; exit 3"], tmp_path, step="compiling")
    assert "compiling failed with exit code 3" in str(err.value)
    assert "no such thing" in str(err.value) and str(tmp_path / "log") in str(err.value)
