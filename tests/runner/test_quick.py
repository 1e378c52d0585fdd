# SPDX-License-Identifier: GPL-2.0-only
"""`make test-quick`: the table, the base, the sample and the budget."""

import fnmatch
import os
import pathlib
import re
import subprocess
import time

import itree_sample as sample
import pytest
import quick
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]
SUITES = tb.load_script(REPO / "tests" / "all").SUITES
NAMES = [f"tests/x/test_a.py::test_{i}" for i in range(100)]


def git(top, *args):
    argv = ["git", "-c", "user.name=a", "-c", "user.email=a@example", *args]
    return subprocess.run(argv, cwd=top, check=True, capture_output=True, text=True).stdout.strip()


def commit(top, name):
    (top / name).write_text(name)
    git(top, "add", name)
    git(top, "commit", "-qm", name)
    return git(top, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path):
    top = tmp_path / "checkout"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    commit(top, "first")
    return top


# The table


def tracked():
    names = quick.git(REPO, "ls-files", "-z")
    if names is None:
        pytest.skip("not a git checkout")
    return names.strip("\0").split("\0")


def test_each_file_has_a_rule():
    assert [n for n in tracked() if not quick.targets(n, SUITES)] == []


def test_each_rule_is_the_first_of_some_file():
    used = {next((p for p, _ in quick.RULES if fnmatch.fnmatchcase(n, p)), None) for n in tracked()}
    assert [p for p, _ in quick.RULES if p not in used] == []


def test_the_table_names_each_suite_and_no_other():
    named = {w.partition(":")[0] for _, words in quick.RULES for w in words.split()}
    named |= {t.partition(":")[0] for n in tracked() for t in quick.targets(n, SUITES)}
    assert named == set(SUITES)
    assert set(quick.SAMPLED) <= set(SUITES)


def test_each_glob_of_the_table_has_a_test_file():
    names = tracked() + [f"tests/runner/{pathlib.Path(__file__).name}"]
    words = {w for _, words in quick.RULES for w in words.split() if ":" in w}
    assert [w for w in words if not fnmatch.filter(names, f"tests/*/{w.partition(':')[2]}")] == []


@pytest.mark.parametrize("name, wanted", [
    ("ansible/roles/kernel/tasks/main.yml", {"ansible"}),
    ("image/build", {"image"}),
    ("packaging/deb/build", {"packages:test_*deb*", "packages:test_changelog.py"}),
    ("bench/matrix", {"bench"}),
    ("docs/results.json", {"bench:test_matrix.py"}),
    ("docs/design.md", {"docs", "lint"}),
    ("SUPPORT.md", {"docs", "lint"}),
    ("kernel/patches/6.12/series", {"core", "kernel", "sources", "lint"}),
    ("kernel/fs/ext4/itree_core.c", {"core", "kernel", "sources", "e2fsprogs", "lint"}),
    ("tests/image/test_add.py", {"image:test_add.py"}),
    ("tests/image/conftest.py", {"image"}),
    ("tests/runner/quick.py", {"sources"}),
    ("a/new/folder", set()),
])  # fmt: skip
def test_targets_of_a_file(name, wanted):
    assert set(quick.targets(name, SUITES)) == wanted


@pytest.mark.parametrize("module, rule", [("treebuild", "packaging/lib/treebuild.py"), ("vm", "tests/vm/vm.py"),
                                          ("stock", "tests/vm/stock.py"), ("uml", "tests/vm/uml.py"),
                                          ("firmware", "tests/vm/firmware.py"), ("roots", "tests/lib/roots.py"),
                                          ("debhost", "tests/lib/debhost.py"), ("command", "tests/lib/command.py")]
)  # fmt: skip
def test_suites_that_import_a_helper_run_when_it_changes(module, rule):
    users, uses = set(), (["import", module], ["from", module])
    for path in REPO.glob("tests/*/*.py"):
        folder = path.parent.name
        suite = quick.FOLDERS.get(folder, folder)
        lines = path.read_text().splitlines()
        if suite in SUITES and folder != "runner" and any(t.split()[:2] in uses for t in lines):
            users.add(suite)
    assert users and users <= {w.partition(":")[0] for w in quick.targets(rule, SUITES)}


def test_a_file_without_a_rule_is_reported():
    found, unknown = quick.concerned(["a/new/folder", "image/run"], SUITES)
    assert unknown == ["a/new/folder"] and found == {"image": {"tests/*/*": ["image/run"]}}


# The base


def test_base_is_where_the_branch_left_main(checkout):
    fork = commit(checkout, "second")
    git(checkout, "checkout", "-qb", "work")
    commit(checkout, "third")
    git(checkout, "checkout", "-q", "main")
    commit(checkout, "other")
    git(checkout, "checkout", "-q", "work")
    assert quick.find_base(checkout)[0] == fork
    assert quick.changed_files(checkout, fork) == ["third"]


def test_upstream_comes_before_main(checkout):
    git(checkout, "checkout", "-qb", "upstream")
    fork = commit(checkout, "second")
    git(checkout, "checkout", "-qb", "work", "--track", "upstream")
    commit(checkout, "third")
    assert quick.find_base(checkout)[0] == fork


def test_a_given_base_wins(checkout):
    first = git(checkout, "rev-parse", "HEAD")
    commit(checkout, "second")
    commit(checkout, "third")
    assert quick.find_base(checkout, "HEAD~2")[0] == first
    with pytest.raises(quick.Error, match="nonsense"):
        quick.find_base(checkout, "nonsense")


def test_on_main_the_last_commit_or_what_is_uncommitted(checkout):
    assert quick.find_base(checkout)[0] == git(checkout, "rev-parse", "HEAD")
    first = git(checkout, "rev-parse", "HEAD")
    second = commit(checkout, "second")
    assert quick.find_base(checkout)[0] == first
    (checkout / "new file").write_text("")
    (checkout / "first").unlink()
    base = quick.find_base(checkout)[0]
    assert base == second and quick.changed_files(checkout, base) == ["first", "new file"]


def test_without_git_nothing_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    base, why = quick.find_base(tmp_path)
    assert base is None and "no git repository" in why and quick.changed_files(tmp_path, base) == []


# The sample


def picked(seed, seconds=(0, 10), globs=(), cost=lambda _: 1):
    return sample.choose(NAMES, globs, seconds, cost, seed)[1]


def test_a_sample_repeats_and_changes_with_the_commit():
    assert len(picked("a")) == 10 and picked("a") == picked("a")
    assert len({n for seed in range(200) for n in picked(str(seed))}) == len(NAMES)


def test_changed_tests_come_first_and_the_sample_gets_their_spare_time():
    names = [*NAMES, "tests/x/test_b.py::test_1"]
    wanted, others = sample.choose(names, ["tests/*/test_b.py"], (6, 4), lambda _: 1, "a")
    assert wanted == {"tests/x/test_b.py::test_1"} and len(others) == 9


def test_tests_that_take_too_long_are_not_chosen():
    slow = {n: 1 + 30 * n.endswith("7") for n in NAMES}
    assert not {n for n in picked("a", cost=slow.get) if slow[n] > 1}
    assert len(picked("a", cost=lambda _: 99)) == 1


def test_estimates():
    cost = sample.estimate({"tests/x/test_a.py::a": 4, "tests/x/test_b.py::b": 8}, 3)
    names = ("x/test_a.py::a", "x/test_a.py::new", "x/test_c.py::new", "y/test_d.py::d")
    assert [cost(f"tests/{n}") for n in names] == [4, 4, 6, 3]


# tests/run and tests/all


def make_suite(top, text):
    (top / "test_made.py").write_text(text)
    return top


def run_suite(top, *options):
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    argv = [REPO / "tests" / "run", top, f"--durations-file={top / 'durations.json'}", *options]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_no_test_starts_after_the_time(tmp_path):
    make_suite(tmp_path, "import time\ndef test_1(): time.sleep(3)\ndef test_2(): pass\ndef test_3(): assert 0\n")
    res = run_suite(tmp_path, f"--until={time.time() + 2.5}")
    assert "left out: 2 tests" in res.stdout and res.stdout.endswith("1 passed, 0 failed\n") and res.returncode == 0
    res = run_suite(tmp_path, "--until=1")
    assert "left out: 3 tests" in res.stdout and res.stdout.endswith("0 passed, 0 failed\n") and res.returncode == 0


def test_durations_are_recorded(tmp_path):
    make_suite(tmp_path, "import time\ndef test_1(): time.sleep(0.3)\ndef test_2(): pass\n")
    assert run_suite(tmp_path).returncode == 0
    found = {n.split("::")[1]: s for n, s in sample.read_durations(tmp_path / "durations.json").items()}
    assert 0.3 <= found["test_1"] < 3 and found["test_2"] < 0.3


def test_a_suite_without_tests_fails(tmp_path):
    make_suite(tmp_path, "")
    assert run_suite(tmp_path, "--sample-seconds=9").returncode == 1


@pytest.fixture
def suites(tmp_path, monkeypatch, checkout):
    """tests/all with suites of one shell command each, in a scratch repository."""
    made = tb.load_script(REPO / "tests" / "all")
    commands = {}
    monkeypatch.setattr(made, "REPO", checkout)
    monkeypatch.setattr(made, "LOGS", checkout / "logs")
    monkeypatch.setattr(made, "NEEDS", {})
    monkeypatch.setattr(made, "AT_ONCE", 2)
    monkeypatch.setitem(quick.SAMPLED, "image", ())
    real = made.call

    def call(target, log, argv=None, env=None, nice=0):
        return real(target, log, ["sh", "-c", commands.get(target, "echo 1 passed, 0 failed")], env)

    monkeypatch.setattr(made, "call", call)

    def run(capsys, *args, **given):
        commands.update({name if name == "lint" else f"test-{name}": text for name, text in given.items()})
        monkeypatch.setattr("sys.argv", ["tests/all", "--quick", *args])
        return made.main(), capsys.readouterr().out

    return run


def test_quick_sums_up(suites, capsys):
    code, text = suites(capsys, "sources", "packages", "stock")
    assert code == 0 and text.endswith("\n2 passed, 0 failed\n")
    assert "stock: no part of a sample" in text and "why: a sample" in text


def test_a_failing_suite_makes_exit_1(suites, capsys):
    code, text = suites(capsys, "sources", "packages", sources="echo 1 passed, 2 failed; exit 1")
    assert code == 1 and text.endswith("\n2 passed, 2 failed\n") and "failed: sources" in text


def test_a_chosen_suite_that_runs_nothing_fails(suites, capsys):
    code, text = suites(capsys, "sources", sources="echo 0 passed, 0 failed")
    assert code == 1 and text.endswith("\n0 passed, 1 failed\n")
    code, text = suites(capsys, "sources", sources="echo left out: 3 tests: the time was up; echo 0 passed, 0 failed")
    assert code == 0 and "left out: 3 tests" in text


def test_no_suite_starts_after_the_time(suites, capsys):
    slow = "sleep 3; echo 1 passed, 0 failed"
    code, text = suites(capsys, "--minutes", "0.02", "sources", "packages", "image", sources=slow, packages=slow)
    assert code == 0 and text.endswith("\n2 passed, 0 failed\n")
    assert "image: left out: the time was up" in text


def test_time_that_a_suite_did_not_use_goes_to_the_next(suites, capsys):
    show = 'echo "chosen: $PYTEST_ADDOPTS"; echo 1 passed, 0 failed'
    names = ("image", "sources", "packages", "lint")
    _, text = suites(capsys, "--minutes", "10", *names, **dict.fromkeys(names, show))
    seconds = sorted(int(s) for s in re.findall(r"--sample-seconds=(\d+)", text))
    assert len(seconds) == 4 and seconds[-1] >= 400


def test_changed_files_reach_the_suite(suites, capsys, checkout):
    (checkout / "packaging").mkdir()
    (checkout / "packaging" / "publisher").write_text("")
    show = 'echo "chosen: $PYTEST_ADDOPTS BASE=$BASE"; echo 1 passed, 0 failed'
    names = ("sources", "lint", "image", "packages")
    _, text = suites(capsys, *names, packages=show, **dict.fromkeys(names[:3], f"sleep 1; {show}"))
    assert all(text.index("packages:") < text.index(f"{name}: 1") for name in names[:3])
    assert "--changed=tests/*/test_publisher.py" in text.replace("'", "") and "why: packaging/publisher changed" in text
    seed = git(checkout, "rev-parse", "HEAD")
    assert text.count(f"--seed={seed}") == 4


def test_a_base_does_not_reach_builds_and_suites(suites, capsys, monkeypatch):
    monkeypatch.setenv("BASE", "main")
    monkeypatch.setenv("MAKEFLAGS", "-- BASE=main")
    _, text = suites(capsys, "sources", sources='echo "chosen: <$BASE$MAKEFLAGS>"; echo 1 passed, 0 failed')
    assert "chosen: <>" in text


def test_a_missing_build_is_reported(suites, capsys):
    code, text = suites(capsys, "sources", "tools")
    assert code == 0 and "tools: not sampled: run `make tools` first" in text
