# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the module share: the distribution's kernel with the module in it."""

import pathlib

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def kernel():
    """The newest kernel of the distribution, with the module."""
    import stock

    return stock.with_module()
