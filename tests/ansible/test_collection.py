# SPDX-License-Identifier: GPL-2.0-only
"""The collection as a whole: lint, documentation, and what its parts say of each other."""

import json
import os
import pathlib
import re
import shutil
import sys

import pytest
import yaml
from conftest import REPO, VENV, run

MODULES = ("itree_boot", "itree_directories_info", "itree_directory", "itree_feature", "itree_volume_info")
ROLES = sorted(p.name for p in (REPO / "ansible" / "roles").iterdir())


def load(path):
    return yaml.safe_load(pathlib.Path(path).read_text()) if pathlib.Path(path).exists() else {}


def test_lint(collection):
    """ansible-lint, production profile, on what users get."""
    assert (collection.root / ".ansible-lint").exists()
    text = run(VENV / "ansible-lint", "--offline", "--nocolor", ".", env=collection.env, cwd=collection.root)[1]
    result = re.search(r"Passed: 0 failure\(s\), 0 warning\(s\) in (\d+) files processed", text)
    assert result and "Profile 'production' was required, and it passed" in text, text
    # Not just the directory's name.
    assert int(result[1]) > 50, text


def test_sanity(collection, tmp_path):
    """ansible-test sanity, all that it has; it installs linters of its own, each pinned, by this machine's pip."""
    root = tmp_path / "ansible_collections" / "itree" / "storage"
    shutil.copytree(collection.root, root)
    # ansible-test brings pip into its environments by a script from the net; Python has one of its own.
    bootstrap = tmp_path / "home" / ".ansible" / "test" / "cache" / "get_pip_24_2.py"
    bootstrap.parent.mkdir(parents=True)
    bootstrap.write_text("import ensurepip\n\nensurepip.bootstrap(default_pip=True)\n")
    version = "{}.{}".format(*sys.version_info)
    argv = [VENV / "ansible-test", "sanity", "--venv", "--python", version, "--color", "no"]
    code, text = run(*argv, ok=None, env=collection.env | {"HOME": str(tmp_path / "home")}, cwd=root, timeout=1200)
    if code and re.search("Could not find a version|No matching distribution|Download failed", text):
        pytest.skip(f"ansible-test could not install what it checks with:\n{text[-1000:]}")
    assert code == 0, text
    done = set(re.findall(r'^Running sanity test "([\w-]+)"', text, re.M))
    assert {"validate-modules", "pylint", "import", "compile", "ansible-doc", "yamllint", "pep8"} <= done, text


def changelog(top, *words, ok=0):
    """Run antsibull-changelog, which calls ansible-doc, in a copy of the collection."""
    return run(VENV / "antsibull-changelog", *words, ok=(ok,), cwd=top, env={"PATH": f"{VENV}:{os.environ['PATH']}"})[1]


@pytest.fixture
def source(tmp_path):
    """A copy of the collection's source, where Ansible expects one."""
    return shutil.copytree(REPO / "ansible", tmp_path / "ansible_collections" / "itree" / "storage")


def test_changelog(source):
    """The fragments and changelog.yaml are valid, and CHANGELOG.rst is what antsibull-changelog makes of them."""
    changelog(source, "lint")
    changelog(source, "lint-changelog-yaml", "changelogs/changelog.yaml")
    was = (source / "CHANGELOG.rst").read_text()
    changelog(source, "generate")
    assert (source / "CHANGELOG.rst").read_text() == was, "run antsibull-changelog generate in ansible/"


def test_changelog_of_a_release(source):
    """A release moves the fragments to the changelog; a fragment in an unknown section is refused."""
    one = source / "changelogs" / "fragments" / "one.yml"
    one.write_text("---\nfixes: [gate role - one.]\n")
    assert "fixes" in changelog(source, "lint", ok=3)
    one.write_text("---\nbugfixes: [gate role - one.]\n")
    changelog(source, "release", "--version", "99.0.0", "--date", "2026-12-31")
    newest = (source / "CHANGELOG.rst").read_text().partition("\nv99.0.0\n")[2].partition("\nv0.2.0\n")[0]
    assert "\n- gate role - one.\n" in newest and not list(one.parent.glob("*.yml"))


def test_archive(collection):
    """The archive holds what a controller needs, and nothing else of the repository."""
    names = run("tar", "-tzf", collection.archive)[1].split()
    files = {"CHANGELOG.rst", "FILES.json", "MANIFEST.json", "README.md", ".ansible-lint"}
    folders = {"changelogs", "meta", "playbooks", "plugins", "roles", "tests"}
    assert {n.split("/")[0] for n in names} <= files | folders, names
    assert [n for n in names if n.startswith("tests/") and not n.endswith("/")] == ["tests/sanity/ignore-2.19.txt"]
    assert not [n for n in names if n.endswith((".pyc", ".orig", "~"))]


def test_module_docs(collection):
    text = run(VENV / "ansible-doc", "-t", "module", "--json", *(f"itree.storage.{m}" for m in MODULES),
               env=collection.env)[1]  # fmt: skip
    docs = json.loads(text[text.index("{") :])
    assert sorted(docs) == sorted(f"itree.storage.{m}" for m in MODULES)
    for name, parts in docs.items():
        assert parts["doc"]["description"] and parts["examples"] and parts["return"], name
        for example in yaml.safe_load(parts["examples"]):
            used = [k for k in example if "." in k]
            args = example[used[0]] if used[0] == name else {}
            assert set(args) <= set(parts["doc"]["options"]), f"{name}: an example uses options that it does not have"


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_those_documented(role):
    """argument_specs and defaults say the same, and `arguments` takes what `main` takes."""
    top = REPO / "ansible" / "roles" / role
    specs = load(top / "meta" / "argument_specs.yml")["argument_specs"]
    options = specs["main"]["options"]
    assert specs["arguments"]["options"] == options
    documented = {name: o["default"] for name, o in options.items() if "default" in o}
    assert load(top / "defaults" / "main.yml") == documented
    for name, option in options.items():
        assert name.startswith(f"itree_{role}_"), name
        assert option["description"] and option["type"], name
    assert (top / "README.md").exists()


def test_readme_names_everything():
    """No role, module or playbook that the README does not tell of."""
    text = (REPO / "ansible" / "README.md").read_text()
    books = [p.stem for p in (REPO / "ansible" / "playbooks").glob("*.yml") if p.stem != "roll_out"]
    missing = [n for n in (*ROLES, *MODULES, *books) if f"`{n}`" not in text and f"**{n}**" not in text]
    assert not missing
