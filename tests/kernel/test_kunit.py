# SPDX-License-Identifier: GPL-2.0-only
"""The unit tests that the kernel runs when it boots."""

import pytest
import uml
import vm


def test_kunit_of_the_kernel_under_test(request):
    """Each case of the itree passes on this kernel, and so do those that ext4 has itself."""
    kernel = request.config.option.kernel_image
    if not uml.built_with("CONFIG_EXT4_KUNIT_TESTS", kernel):
        pytest.skip("this kernel was built without its unit tests")
    res = vm.run("true", kernel=kernel, kunit=True, timeout=300)
    assert res.ok, res.explain()
    passed = {(c.suite, c.name) for c in res.kunit if c.status == "passed"}
    assert "ext4_inode_test" in {suite for suite, _ in passed}
    assert {suite: sorted(name for s, name in passed if s == suite) for suite in vm.ITREE_KUNIT} == vm.ITREE_KUNIT
