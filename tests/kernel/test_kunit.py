# SPDX-License-Identifier: GPL-2.0-only
"""The unit tests that the kernel runs when it boots."""

import pathlib

import pytest
import vm


def test_kunit_of_the_kernel_under_test(request):
    """Each case of the itree passes on this kernel, and so do those that ext4 has itself."""
    kernel = pathlib.Path(request.config.option.kernel_image)
    config = kernel.parent / "config"
    if not config.is_file() or "\nCONFIG_EXT4_KUNIT_TESTS=y\n" not in config.read_text():
        pytest.skip("this kernel was built without its unit tests")
    res = vm.run("true", kernel=kernel, kunit=True, timeout=300)
    assert res.ok, res.explain()
    passed = {(c.suite, c.name) for c in res.kunit if c.status == "passed"}
    assert "ext4_inode_test" in {suite for suite, _ in passed}
    assert {suite: sorted(name for s, name in passed if s == suite) for suite in vm.ITREE_KUNIT} == vm.ITREE_KUNIT
