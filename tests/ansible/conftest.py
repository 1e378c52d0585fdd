# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the collection share: the collection as users get it, ways to run it, file systems to run it on."""

import contextlib
import json
import os
import pathlib
import re
import shutil

import pytest
from command import run

REPO = pathlib.Path(__file__).resolve().parents[2]
VENV = REPO / "build" / "venv" / "bin"
SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"

# A play costs seconds of processor time; continuous integration has two minutes for all of this.
full = pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="more plays of the same kind: set ITREE_FULL=1")


class Played:
    """What a run of ansible-playbook came to."""

    def __init__(self, code, text):
        self.code, self.text = code, text
        recap = text.split("PLAY RECAP")[-1] if "PLAY RECAP" in text else ""
        self.hosts = {
            m[1]: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", m[2])}
            for m in re.finditer(r"^(\S+)\s+: (ok=.*)$", recap, re.M)
        }

    def good(self):
        assert self.code == 0, self.text
        return self

    def bad(self, *words):
        assert self.code != 0, self.text
        # Messages are wrapped and quoted in several ways.
        flat = " ".join(self.text.split())
        for word in words:
            assert word in flat, f"{word!r} is not in:\n{self.text}"
        return self

    def changed(self):
        return {name: n["changed"] for name, n in self.hosts.items()}


class Collection:
    """The collection, built and installed as `ansible-galaxy` does it."""

    def __init__(self, top):
        self.top = top
        self.env = {
            "ANSIBLE_COLLECTIONS_PATH": str(top),
            "ANSIBLE_HOME": str(top / "home"),
            "ANSIBLE_REMOTE_TMP": str(top / "remote"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "ANSIBLE_RETRY_FILES_ENABLED": "0",
            "ANSIBLE_CONFIG": str(top / "ansible.cfg"),
            "ANSIBLE_CONNECTION_PLUGINS": str(pathlib.Path(__file__).parent / "connections"),
            "PATH": f"{VENV}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        (top / "ansible.cfg").write_text("[defaults]\n")
        run(VENV / "ansible-galaxy", "collection", "build", REPO / "ansible", "--output-path", top, env=self.env)
        self.archive = next(top.glob("*.tar.gz"))
        run(VENV / "ansible-galaxy", "collection", "install", self.archive, "-p", top, "--offline", env=self.env)
        self.root = top / "ansible_collections" / "itree" / "storage"

    def module(self, name, args=None, check=False, diff=False, before=(), ok=True):
        """Run a module as it would run on a host; its answer. before: words to put before the command."""
        payload = {"ANSIBLE_MODULE_ARGS": {**(args or {}), "_ansible_check_mode": check, "_ansible_diff": diff}}
        site = next((REPO / "build" / "venv" / "lib").glob("python3*")) / "site-packages"
        path = self.top / "args.json"
        path.write_text(json.dumps(payload))
        argv = [*before, VENV / "python", "-m", f"ansible_collections.itree.storage.plugins.modules.{name}", path]
        env = {**self.env, "PYTHONPATH": f"{self.top}:{site}"}
        code, text = run(*argv, ok=None, env=env, cwd="/")
        try:
            answer = json.loads(text[text.index("{") :])
        except ValueError:
            pytest.fail(f"{argv} ended with {code} and wrote no JSON:\n{text}")
        assert bool(answer.get("failed")) != ok, text
        return answer

    def play(self, playbook, hosts, *options, before=(), variables=None, group="all", timeout=600):
        """Run a playbook, by name or as a list of plays, on hosts {name: variables}: this machine if they name none."""
        common = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
        listed = {name: {**common, **(own or {})} for name, own in hosts.items()}
        inventory = self.top / "inventory.json"
        inventory.write_text(json.dumps({group: {"hosts": listed}}))
        if not isinstance(playbook, str):
            (self.top / "play.yml").write_text(json.dumps(playbook))
            playbook = self.top / "play.yml"
        extra = ["-e", json.dumps(variables)] if variables else []
        argv = [*before, VENV / "ansible-playbook", "-i", inventory, playbook, *options, *extra]
        return Played(*run(*argv, ok=None, env=self.env, cwd=self.top, timeout=timeout))

    def role(self, name, *options, before=(), **variables):
        """Run one role on this machine."""
        play = [{"hosts": "all", "gather_facts": False, "tasks": [
            {"ansible.builtin.include_role": {"name": f"itree.storage.{name}"}}]}]  # fmt: skip
        return self.play(play, {"here": variables}, *options, before=before)


@pytest.fixture(scope="session")
def collection(tmp_path_factory):
    if not (VENV / "ansible-playbook").exists():
        pytest.fail("ansible is not in build/venv: run `make deps`")
    return Collection(tmp_path_factory.mktemp("collection"))


@pytest.fixture(scope="session")
def tools():
    """Our e2fsprogs."""
    if not (SBIN / "e4itree").exists():
        pytest.fail(f"{SBIN}/e4itree is missing: run `make e2fsprogs`")
    return SBIN


@pytest.fixture(scope="session")
def repos(tmp_path_factory):
    """The release of the kernel under test, and repositories from which a host can have it."""
    # Imported here, since it takes run() from this file.
    import machine_packages
    import vm

    if os.geteuid():
        pytest.skip("a host to install into takes root (mount)")
    if not vm.DEFAULT_KERNEL.exists():
        pytest.fail(f"{vm.DEFAULT_KERNEL} is missing: run `make kernel`")
    release = (REPO / "build" / "kernel" / "release").read_text().strip()
    return release, machine_packages.make(tmp_path_factory.mktemp("repos"), vm.DEFAULT_KERNEL, release)


class Image:
    """An ext4 image, and where it is mounted if it is."""

    def __init__(self, path, *options, size="64M"):
        self.path, self.point = path, None
        with open(path, "wb") as handle:
            handle.truncate(int(size[:-1]) << 20)
        run("mke2fs", "-q", "-t", "ext4", "-F", *options, path)

    def mount(self, point, options="loop"):
        point.mkdir(exist_ok=True)
        code, text = run("mount", "-t", "ext4", "-o", options, self.path, point, ok=None)
        if code:
            pytest.skip(f"needs a loop mount of ext4, which failed: {text.strip()}")
        self.point = point
        return point

    def umount(self):
        if self.point:
            run("umount", self.point)
            self.point = None


@pytest.fixture
def image(tmp_path):
    """Makes images; whatever is still mounted at the end is unmounted."""
    made = []

    def make(*options, **kwargs):
        made.append(Image(tmp_path / f"image{len(made)}", *options, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.umount()


def fill(directory, number, length=60):
    """Make empty files with names of that length."""
    directory.mkdir(parents=True, exist_ok=True)
    for n in range(number):
        (directory / f"{n:0{length}x}").touch()
    return directory


class Sandbox:
    """This host with changes that go away: its /etc, /usr and /var are covered by overlays in what it runs."""

    COVERED = ("etc", "usr", "var")

    def __init__(self, top):
        self.top = top
        run("mount", "-t", "tmpfs", "-o", "mode=755", "itree-test", top)
        for name in self.COVERED:
            (top / f"{name}.up").mkdir()
            (top / f"{name}.work").mkdir()

    @property
    def before(self):
        """Words that make a command run in it."""
        lines = [
            f"mount -t overlay -o lowerdir=/{n},upperdir={self.top}/{n}.up,workdir={self.top}/{n}.work itree-test /{n}"
            for n in self.COVERED
        ]
        return ("unshare", "--mount", "--propagation", "private", "sh", "-ec", "; ".join([*lines, 'exec "$@"']), "sh")

    def run(self, *argv, **kwargs):
        return run(*self.before, *argv, **kwargs)[1]

    def put(self, path, data, mode=0o644):
        """Write a file of the sandbox."""
        # By way of the overlay, for the directories to be those of the host.
        (self.top / "put").write_bytes(data if isinstance(data, bytes) else data.encode())
        self.run("install", "-D", "-m", f"{mode:o}", self.top / "put", path)

    def changes(self):
        """All in /etc and /usr that differs from the host, with contents; what programs note in /var aside."""
        found = {}
        for name in ("etc", "usr"):
            for path in sorted((self.top / f"{name}.up").rglob("*")):
                rel = f"/{name}/{path.relative_to(self.top / f'{name}.up')}"
                if path.is_file():
                    found[rel] = path.read_bytes()
                elif path.is_symlink() or path.is_char_device():
                    found[rel] = None
        return found

    def close(self):
        run("umount", self.top, ok=None)


@pytest.fixture
def sandbox(tmp_path):
    if os.geteuid():
        pytest.skip("covering /etc with an overlay wants the rights of root")
    top = tmp_path / "sandbox"
    top.mkdir()
    made = Sandbox(top)
    yield made
    made.close()
    shutil.rmtree(top, ignore_errors=True)


class Standin:
    """The stand-in for e4itree, in a directory of its own."""

    def __init__(self, top):
        self.top = top
        self.path = top / "e4itree"
        shutil.copy(pathlib.Path(__file__).parent / "standin.py", self.path)
        self.path.chmod(0o755)

    def answer(self, path, *answers):
        """What to answer for a path: (exit code, record, what to say on standard error), one for each call."""
        file = self.top / "answers.json"
        all_ = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**all_, str(path): answers}))

    def calls(self):
        """The calls since the last look, as they were: operation, [dry,] path."""
        log = self.top / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def hook(self, script):
        (self.top / "hook").write_text(f"#!/bin/sh\n{script}\n")
        (self.top / "hook").chmod(0o755)


@pytest.fixture
def standin(tmp_path):
    top = tmp_path / "standin"
    top.mkdir()
    return Standin(top)


@pytest.fixture
def host(tmp_path):
    """Makes one whole machine; it is switched off at the end, come what may."""
    # As in repos().
    import debian_image
    import machine

    with contextlib.ExitStack() as stack:

        def make(kind=machine.Machine, **kwargs):
            made = kind(debian_image.image(), tmp_path / "machine", **kwargs)
            stack.callback(made.close)
            return made

        yield make
