# SPDX-License-Identifier: GPL-2.0-only
"""Options and the runner; see tests/kernel/README.md."""

import os
import pathlib
import zlib

import pytest
import turns
import uml
from kt import registry

REPO = pathlib.Path(__file__).resolve().parents[2]
FULL = bool(os.environ.get("ITREE_FULL"))


def pytest_addoption(parser):
    group = parser.getgroup("itree kernel tests")
    group.addoption("--kernel-image", default=str(REPO / "build/kernel/bzImage"), help="the kernel under test")
    group.addoption("--without-itree", action="store_true", help="file systems without the feature: tests must fail")
    group.addoption("--plain", action="store_true", help="tests of the tests: a stock kernel, no order or trees wanted")
    group.addoption("--kernel-append", action="append", default=[], help="kernel parameter, may repeat")
    group.addoption("--type", default="ext4", help="what to mount: ext4, or ext4itree on a kernel that has the module")
    group.addoption("--tenth", type=int, help="of the results only those whose names hash to this number of ten")
    group.addoption("--machines", type=int, default=2, help="virtual machines at a time")
    group.addoption("--keep-images", action="store_true", help="keep all images in build/tests/kernel")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: very large directories")
    config.addinivalue_line("markers", "qemu: `make test` runs it in QEMU")
    config.addinivalue_line("markers", "debug: `make test` runs it on the debug kernel")
    config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout")
    config.itree_runner = None


def pytest_collection_modifyitems(config, items):
    if config.option.tenth is not None:
        out = [i for i in items if "result" in getattr(i, "fixturenames", ())
               and zlib.crc32(i.callspec.params["result"].encode()) % 10 != config.option.tenth]  # fmt: skip
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in out]
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
        type_=opt.type,
    )


def pytest_sessionfinish(session):
    if session.config.itree_runner:
        session.config.itree_runner.close()


def _counted(done):
    """What cases counted, added up by group: {group: {what: how many}}."""
    totals = {}
    for result, outcome in done.items():
        group = totals.setdefault(registry.case_of(result).group, {"results": 0})
        group["results"] += 1
        for key, value in outcome.stats.items():
            if not key.endswith("_ms"):
                group[key] = group.get(key, 0) + value
    return totals


def pytest_terminal_summary(terminalreporter, config):
    """Cut points, faults, images: what stands behind the number of tests that passed."""
    if config.itree_runner:
        for group, counts in sorted(_counted(config.itree_runner.done).items()):
            line = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in counts.items())
            terminalreporter.write_line(f"counted, {group}: {line}")


def _marks(result, kernel):
    """What this kernel cannot do, and what takes too long for each run of CI on two emulated CPUs."""
    case = registry.case_of(result)
    marks = [pytest.mark.slow] if case.slow else []
    if case.on_debug:
        marks.append(pytest.mark.debug)
    elif case.needs_qemu or (case.id in registry.IN_QEMU.split() and (FULL or turns.is_turn_of(case.id, 2))):
        marks.append(pytest.mark.qemu)
    if case.full and not FULL:
        marks.append(pytest.mark.skip(reason=f"{case.full}: set ITREE_FULL=1"))
    if case.machine and pathlib.Path(kernel).is_file() and uml.is_uml(kernel):
        marks.append(pytest.mark.skip(reason=case.machine))
    if case.config and uml.built_with(case.config, kernel) is False:
        why = f"this kernel has no {case.config}: make kernel-uml, then --kernel-image build/kernel-uml/linux"
        marks.append(pytest.mark.skip(reason=why))
    return marks


def pytest_generate_tests(metafunc):
    """Parametrise by the results of all cases, group by group: `-k ops` selects a group, `-k ops:` only that."""
    if "result" in metafunc.fixturenames:
        kernel = metafunc.config.option.kernel_image
        results = [(g, r) for g in registry.groups() for r in registry.results_of(g)]
        metafunc.parametrize("result", [pytest.param(r, id=f"{g}:{r}", marks=_marks(r, kernel)) for g, r in results])


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
            # The first line is what pytest's summary shows, and that may be all that is left of a log.
            first = outcome.fails[0].strip().splitlines()[0] if outcome.fails[0].strip() else "?"
            pytest.fail(f"{len(outcome.fails)} findings: {first}\n{shown}\nkernel log: {outcome.log}", pytrace=False)
        if outcome.skip:
            pytest.skip(outcome.skip)

    return check
