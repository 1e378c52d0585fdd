# SPDX-License-Identifier: GPL-2.0-only
"""Kernel series: each is a line in sources.lock, and has the patches of itself or of the series before it."""

import pathlib

import pytest
import sources
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def kernel():
    return tb.load_script(REPO / "kernel" / "build")


def lock(*lines):
    return {n: sources.Source(n, v, None, f"linux-source-{v}") for n, v in lines}


def test_a_later_series_takes_the_patches_of_the_one_before(kernel, monkeypatch):
    """7.10 is later than 7.3, and the default is the line `linux`, wherever it stands."""
    monkeypatch.setattr(sources, "read_lock", lambda: lock(("linux-7.10", "7.10"), ("linux-7.3", "7.3"),
                                                           ("linux", "6.12"), ("linux-6.13", "6.13")))  # fmt: skip
    found = kernel.bases()
    assert [(b.series, b.parts, b.default) for b in found.values()] == [
        ("6.12", "6.12", True), ("6.13", "6.12", False), ("7.3", "7.3", False), ("7.10", "7.3", False),
    ]  # fmt: skip
    assert kernel.base_of() == found["6.12"] and kernel.base_of("7.10").source == "linux-7.10"


def test_a_series_before_all_patches_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(sources, "read_lock", lambda: lock(("linux", "6.1")))
    with pytest.raises(tb.BuildError, match=r"Linux 6\.1; kernel/patches begins with 6\.12"):
        kernel.bases()


def test_an_unknown_series_is_refused_with_those_there_are(kernel):
    with pytest.raises(tb.UsageError, match=r"no base 5\.15: .* sources\.lock, which has Linux 6\.12, .* and "):
        kernel.base_of("5.15")


def test_what_is_tried_where_all_take_too_long(kernel, monkeypatch):
    lines = [("linux", "6.12"), ("linux-7.10", "7.10"), ("linux-7.3", "7.3")]
    for count, want in ((3, ["6.12", "7.10"]), (1, ["6.12"])):
        monkeypatch.setattr(sources, "read_lock", lambda n=count: lock(*lines[:n]))
        assert [b.series for b in kernel.ends()] == want
    assert [kernel.listed(["1", "2", "3"][:n]) for n in (1, 2, 3)] == ["1", "1 and 2", "1, 2 and 3"]


def test_releases_of_a_series(kernel):
    base = kernel.base_of("6.12")
    assert base.has("6.12.1") and base.has("6.12") and not base.has("6.1.2") and not base.has("6.120.1")


def test_all_series_have_the_same_patches(kernel):
    """The same changes in the same order with the same messages; a base may have more of its own before them."""
    heads = {}
    for base in kernel.bases().values():
        heads[base.parts] = [p.read_text().split("\n---\n")[0] for p in base.patches()]
    newest = heads[max(heads, key=kernel.numbers)]
    for parts, have in heads.items():
        assert have[-len(newest) :] == newest, parts


def test_what_a_series_lacks_is_laid_over_it_alone(kernel):
    names = {b.parts: set(b.overlay()) for b in kernel.bases().values()}
    assert names["6.12"] - names["7.3"] == {"fs/ext4/itree_compat.h"} and not names["7.3"] - names["6.12"]


def test_a_configuration_has_options_that_only_this_series_has(kernel):
    found = kernel.base_of("6.12").fragments(["uml.config", "debug.config"])
    names = [str(p.relative_to(kernel.KERNEL / "config")) for p in found]
    assert names == ["uml.config", "6.12/uml.config", "debug.config"]
