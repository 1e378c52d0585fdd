# SPDX-License-Identifier: GPL-2.0-only
"""A copy of this host that apt can install into: an overlay over its root, with its own package database."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import debian_image
import debian_root
import pytest
import roots
from roots import there

REPO = pathlib.Path(__file__).resolve().parents[2]


def build(out, *names, release="0.1", target="bookworm"):
    """Run packaging/deb/build for a release of Debian; the APT repository it made."""
    if 'VERSION_ID="12"' not in pathlib.Path("/etc/os-release").read_text() and os.geteuid():
        pytest.skip("another release's .debs are built in a root of it, which wants the rights of root")
    made = f"apt/{target}"
    if there(out.name, f"{made}/InRelease"):
        return there(out.name, f"{made}/InRelease") / made
    env = {**os.environ, "ITREE_RELEASE": release}
    env.pop("ITREE_SIGN_KEY", None)
    argv = [REPO / "packaging" / "deb" / "build", "repo", *names, "--release", target, "--out", out]
    res = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False)  # fmt: skip
    assert res.returncode == 0, res.stdout
    return out / made


class Apt:
    """What both hosts do with apt; run(script, ok=...) is theirs. No mirror is asked: what is wanted lies in /repo."""

    def apt(self, *args, ok=(0,)):
        __tracebackhide__ = True
        options = ("Dir::Etc::SourceList=/apt/sources.list", "Dir::Etc::SourceParts=/apt/none",
                   "Dir::State::Lists=/apt/lists", "Dir::Cache::Archives=/apt/archives", "Dir::Cache::pkgcache=",
                   "Dir::Cache::srcpkgcache=", "APT::Sandbox::User=root", "Dir::Etc::PreferencesParts=/apt/none",
                   "Dpkg::Options::=--force-confold", "Dpkg::Use-Pty=0")  # fmt: skip
        words = " ".join(f"-o {o}" for o in options)
        return self.run(f"DEBIAN_FRONTEND=noninteractive apt-get -y {words} {' '.join(args)}", ok)

    def versions(self, *names):
        """{name: (version, state)} of installed packages."""
        lines = self.run(f"dpkg-query -W -f '${{Package}} ${{Version}} ${{db:Status-Abbrev}}\\n' {' '.join(names)}")
        return {t.split()[0]: tuple(t.split()[1:]) for t in lines.splitlines()}


class Host(Apt):
    """A copy of this host that keeps its changes in memory; `repo` is copied to its /repo, with its key."""

    def __init__(self, aside, repo):
        self.aside, self.root, self.mounts = aside, aside / "root", []
        roots.call("mount", "-t", "tmpfs", "-o", "mode=755", "itree-test", aside)
        try:
            for name in ("upper", "work", "root"):
                (aside / name).mkdir()
            options = f"lowerdir=/,upperdir={aside}/upper,workdir={aside}/work"
            roots.call("mount", "-t", "overlay", "-o", options, "itree-test", self.root)
            shutil.copytree(repo, self.root / "repo")
            (self.root / "apt").mkdir()
            self.source()
            for name in ("lists/partial", "archives/partial"):
                (self.root / "apt" / name).mkdir(parents=True)
            os.mknod(self.root / "apt" / "null", 0o20666, os.makedev(1, 3))
            # No service of the copy is to be started.
            policy = self.root / "usr" / "sbin" / "policy-rc.d"
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        except BaseException:
            self.close()
            raise

    def use(self, repo):
        """Take another repository for /repo."""
        shutil.rmtree(self.root / "repo")
        shutil.copytree(repo, self.root / "repo")

    def mount(self, kind, where):
        roots.call("mount", "-t", kind, "itree-test", self.root / where)
        self.mounts.append(self.root / where)

    def source(self, options="signed-by=/repo/itree-archive-keyring.asc"):
        (self.root / "apt" / "sources.list").write_text(f"deb [{options}] file:/repo ./\n")

    def run(self, script, ok=(0,)):
        __tracebackhide__ = True
        return roots.call("chroot", self.root, "/bin/sh", "-ec", script, ok=ok)[1]

    def close(self):
        for path in (*reversed(self.mounts), self.root, self.aside):
            if os.path.ismount(path):
                roots.unmount(path)


@contextlib.contextmanager
def copy_of_this_host(repo):
    if os.geteuid():
        pytest.skip("a copy of this host wants the rights of root (mount)")
    with tempfile.TemporaryDirectory(prefix="itree-host-") as path:
        made = Host(pathlib.Path(path), repo)
        try:
            yield made
        finally:
            made.close()


class Disk(Apt, debian_root.DebianRoot):
    """The disk of a Debian host with GRUB, to be installed into and then booted. Repositories lie in its /repo."""

    def __init__(self, top, repos, recipe=debian_image.SERVER):
        self.repos = repos
        super().__init__(top, roots.call, recipe)

    def prepare(self):
        lines = ""
        for number, repo in enumerate(self.repos):
            self.inside("mkdir", "-p", f"{self.root}/repo")
            self.inside("cp", "-rT", repo, f"{self.root}/repo/{number}")
            lines += f"deb [signed-by=/repo/{number}/itree-archive-keyring.asc] file:/repo/{number} ./\n"
        # What the distribution has for this host.
        lines += "deb [trusted=yes] file:/srv/debian ./\n"
        self.put("/apt/sources.list", lines)
        self.run("mkdir -p /apt/lists/partial /apt/archives/partial")
        # No service is started: nothing of it runs.
        self.put("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", "755")

    def run(self, script, ok=(0,)):
        __tracebackhide__ = True
        return super().run("/bin/sh", "-ec", script, ok=ok)
