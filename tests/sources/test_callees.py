# SPDX-License-Identifier: GPL-2.0-only
"""kernel/callees: functions of the kernel that have changed under those that call them."""

import pathlib

import pytest
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]
OLD = """/* Ends a read. */
void end_read(struct buffer *b)
{
	unlock(b);
	put(b);
}
static inline int same(int x)
{
	return x; /* as ever */
}
#define twice(x) ((x) + (x))
void not_called(void)
{
	old();
}
"""


@pytest.fixture
def callees():
    return tb.load_script(REPO / "kernel" / "callees")


@pytest.fixture
def tree(tmp_path):
    def make(name, text):
        (tmp_path / name / "fs").mkdir(parents=True)
        (tmp_path / name / "fs" / "buffer.c").write_text(text)
        return tmp_path / name

    return make


def test_a_reference_that_is_no_longer_dropped_is_found(callees, tree):
    """The signature is the same, so no compiler says so; other functions, comments and spaces do not count."""
    new = OLD.replace("\tput(b);\n", "").replace("as ever", "still").replace("old();", "new();")
    new = new.replace("\treturn x;", "\treturn\n\t\tx;")
    names = {"end_read", "same", "twice"}
    found = [callees.definitions(tree(n, text), names) for n, text in (("old", OLD), ("new", new))]
    assert set(found[0]) == names
    ((name, lines),) = callees.compare(*found)
    assert name == "end_read" and "-\tput(b);" in lines


def test_what_is_new_and_what_is_gone_is_found(callees, tree):
    new = OLD.replace("twice", "double")
    found = [callees.definitions(tree(n, text), {"twice", "double"}) for n, text in (("old", OLD), ("new", new))]
    assert [name for name, _ in callees.compare(*found)] == ["double", "twice"]


def test_what_our_files_call_is_read(callees):
    """Also what the patches add, and nothing that only a comment names."""
    names = callees.called(tb.load_script(REPO / "kernel" / "build").base_of("6.12"))
    assert {"end_buffer_read_sync", "page_cache_ra_unbounded", "d_alloc_parallel", "mapping_empty"} <= names
    assert "ext4_error" not in names
