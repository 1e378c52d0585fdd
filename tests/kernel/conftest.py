# SPDX-License-Identifier: GPL-2.0-only
"""Options and the runner; see tests/kernel/README.md."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from kt import registry  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    group = parser.getgroup("itree kernel tests")
    group.addoption("--kernel-image", default=str(REPO / "build/kernel/bzImage"), help="the kernel under test")
    group.addoption("--without-itree", action="store_true", help="file systems without the feature: tests must fail")
    group.addoption("--plain", action="store_true", help="tests of the tests: a stock kernel, no order or trees wanted")
    group.addoption("--kernel-append", action="append", default=[], help="kernel parameter, may repeat")
    group.addoption("--machines", type=int, default=2, help="virtual machines at a time")
    group.addoption("--keep-images", action="store_true", help="keep all images in build/tests/kernel")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: very large directories")
    config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout")
    config.itree_runner = None


def pytest_collection_modifyitems(items):
    for item in items:
        # A test waits for its machine, perhaps until all others are done.
        item.add_marker(pytest.mark.timeout(0))


def pytest_collection_finish(session):
    wanted = [
        i.callspec.params["result"]
        for i in session.items
        if "result" in getattr(i, "fixturenames", ()) and not i.get_closest_marker("skip")
    ]
    if not wanted or session.config.option.collectonly:
        return
    from kt.runner import Runner

    opt = session.config.option
    session.config.itree_runner = Runner(
        wanted,
        pathlib.Path(opt.kernel_image).absolute(),
        itree=not (opt.without_itree or opt.plain),
        jobs=opt.machines,
        keep=opt.keep_images,
        plain=opt.plain,
        append=opt.kernel_append,
    )


def pytest_sessionfinish(session):
    if session.config.itree_runner:
        session.config.itree_runner.close()


def _marks(result):
    """Filling directories of 1,000,000 takes too long for each run of CI on two emulated CPUs."""
    marks = [pytest.mark.slow] if registry.case_of(result).slow else []
    if "-1m-" in result and not os.environ.get("ITREE_FULL"):
        marks.append(pytest.mark.skip(reason="a directory of 1,000,000 names takes minutes to fill: set ITREE_FULL=1"))
    return marks


def pytest_generate_tests(metafunc):
    """Modules name their group; each result of its cases is a test of its own."""
    group = getattr(metafunc.module, "GROUP", None)
    if group and "result" in metafunc.fixturenames:
        metafunc.parametrize(
            "result",
            [pytest.param(r, id=r, marks=_marks(r)) for r in registry.results_of(group)],
        )


@pytest.fixture
def outcome(request, result, record_property):
    """Waits until the machine that runs this case is done with it."""
    found = request.config.itree_runner.outcome(result)
    for key, value in found.stats.items():
        record_property(key, value)
    record_property("guest_seconds", found.seconds)
    return found


@pytest.fixture
def judge(outcome):
    def check():
        if outcome.fails:
            shown = "\n".join(outcome.fails[:15])
            pytest.fail(f"{len(outcome.fails)} findings\n{shown}\nkernel log: {outcome.log}", pytrace=False)
        if outcome.skip:
            pytest.skip(outcome.skip)

    return check
