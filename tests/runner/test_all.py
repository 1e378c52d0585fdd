# SPDX-License-Identifier: GPL-2.0-only
"""The order in which tests/all builds and runs suites."""

import pathlib
import threading

import pytest
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]


class Fake:
    """Takes the place of make. Suites and builds end as soon as they are let."""

    def __init__(self, broken=()):
        self.broken, self.lock = broken, threading.Lock()
        self.running, self.most, self.ended, self.before = set(), 0, [], {}
        self.wait = {}

    def call(self, target, log, argv=None, env=None, nice=0):  # of tests/all
        with self.lock:
            self.running.add(target)
            self.before[target] = list(self.ended)
            self.most = max(self.most, sum(t.startswith(("test-", "lint")) for t in self.running))
        if target in self.wait:
            assert self.wait[target].wait(60), f"{target} was never let"
        log.write_text("1 passed, 0 failed\n")
        with self.lock:
            self.running.remove(target)
            self.ended.append(target)
        if f"after {target}" in self.wait:
            self.wait[f"after {target}"].set()
        return (2 if target in self.broken else 0), 1.0


@pytest.fixture(name="suites")
def _suites(tmp_path, monkeypatch):
    module = tb.load_script(REPO / "tests" / "all")
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module, "REPO", tmp_path)
    return module


def run(suites, monkeypatch, fake, wanted=None):
    monkeypatch.setattr(suites, "call", fake.call)
    return [sum(n) for n in zip(*suites.run_all(wanted or suites.SUITES), strict=True)]


def test_each_suite_runs_once_after_its_builds(suites, monkeypatch):
    fake = Fake()
    assert run(suites, monkeypatch, fake) == [len(suites.SUITES), 0, 0]
    targets = {name: name if name == "lint" else f"test-{name}" for name in suites.SUITES}
    assert sorted(fake.ended) == sorted([*targets.values(), *suites.BUILDS])
    for name, target in targets.items():
        assert {*suites.NEEDS.get(name, ()), *suites.AFTER.get(name, ())} <= set(fake.before[target]), name
    assert fake.most <= suites.AT_ONCE


def test_suites_that_need_no_build_do_not_wait_for_one(suites, monkeypatch):
    fake = Fake()
    done = fake.wait[suites.BUILDS[0]] = fake.wait["after test-sources"] = threading.Event()
    assert run(suites, monkeypatch, fake)[1] == 0
    assert done.is_set() and suites.BUILDS[0] not in fake.before["test-sources"]


def test_those_that_use_all_processors_run_alone_at_the_end(suites, monkeypatch):
    fake = Fake()
    run(suites, monkeypatch, fake)
    assert fake.ended[-len(suites.LAST) :] == [f"test-{name}" for name in suites.LAST]


def test_only_what_is_needed_is_built(suites, monkeypatch):
    fake = Fake()
    assert run(suites, monkeypatch, fake, ["core", "module"]) == [2, 0, 0]
    assert sorted(fake.ended) == ["e2fsprogs", "test-core", "test-module"]


def test_without_its_build_a_suite_fails_and_the_others_run(suites, monkeypatch, capsys):
    fake = Fake(broken=("kernel-uml",))
    wanted = len(suites.SUITES)
    concerned = [name for name in suites.SUITES if "kernel-uml" in suites.NEEDS.get(name, ())]
    assert concerned
    assert run(suites, monkeypatch, fake) == [wanted - len(concerned), len(concerned), 0]
    assert "not run: the build of kernel-uml failed" in capsys.readouterr().out
    assert not {f"test-{name}" for name in concerned} & set(fake.ended)
