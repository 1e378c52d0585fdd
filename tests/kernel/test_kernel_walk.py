# SPDX-License-Identifier: GPL-2.0-only
"""Random walks on small volumes (tests/walker) where the kernel takes its turns with the tools."""

import os
import pathlib
import re
import sys

import configs
import vm

REPO = pathlib.Path(__file__).resolve().parents[2]

FULL = bool(os.environ.get("ITREE_FULL"))
WALKS = 300 if FULL else 6


def test_walks(request):
    # The guest sees the host's files, and cannot write them.
    for seed in range(min(WALKS, len(configs.CONFIGS))):
        configs.template(configs.of_seed(seed))
    configs.helper()
    argv = [sys.executable, REPO / "tests" / "walker" / "walk", "--seeds", f"0-{WALKS - 1}", "--mount", "kernel"]
    kernel = request.config.option.kernel_image
    res = vm.run([*map(str, argv)], kernel=kernel, memory="1G", timeout=4 * 3600 if FULL else 900)
    print(res.stdout)
    assert res.ok, res.explain()
    assert f"{WALKS} passed, 0 failed" in res.stdout
    assert int(re.search(r"^ +(\d+) steps kernel$", res.stdout, re.M)[1]) >= WALKS
    for what in ("depth 2", "a leaf begins with the tree"):
        assert int(re.search(rf"^ +(\d+) walks: {what}$", res.stdout, re.M)[1]), f"no walk reached: {what}"
