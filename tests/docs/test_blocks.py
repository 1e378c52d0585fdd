# SPDX-License-Identifier: GPL-2.0-only
"""The code blocks of README.md and docs/ do what the pages say, as they are written."""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys

import blocks
import debian
import pytest
import roots
import uml
import vm
import webserver
from conftest import FULL, REPO

PAGES = (REPO / "README.md", *sorted((REPO / "docs").rglob("*.md")))
BLOCKS = [block for page in PAGES for block in blocks.read(page, REPO)]
KERNEL = REPO / "build" / "kernel-uml-fast" / "linux"
SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"
PACKAGES = ("e2fsprogs", "e2fsprogs-itree", "diskorder", "tar-itree", "rsync-itree", "itree-advise", "itree-release",
            "itree-storage-server")  # fmt: skip


def in_root(name):
    """The cases of one root: its blocks, in the order in which they run."""
    return pytest.mark.parametrize("block", [b for b in BLOCKS if name in b.roots], ids=str)


def script(some, words, reset="false"):
    """A shell script that runs blocks with words replaced, and prints `=== INDEX CODE` after each.

    reset is run before a block that wants a volume without the feature.
    """
    text = ""
    for number, block in enumerate(some):
        body = block.text
        for word, value in words.items():
            body = re.sub(rf"\b{re.escape(word)}\b", value, body)
        # Each line as if typed: the first that fails ends the block. The shell reads a comment to the end of its line.
        lines = [line for line in body.splitlines() if line.strip() and line.lstrip()[0] != "#"]
        body = "\n".join(f"( {line}\n) || exit" for line in lines)
        text += f"{reset}\n" * block.plain
        text += f"( set -x\n{body}\n) </dev/null 2>&1\necho '=== {number}' $?\n"
    return text


def results(some, output):
    """{block: (exit code, output)} of what script() printed."""
    parts = re.split(r"(?m)^=== (\d+) (\d+)\n", output)
    done = {int(n): (int(code), text) for text, n, code in zip(parts[::3], parts[1::3], parts[2::3], strict=False)}
    return {block: done.get(number, (None, output[-4000:])) for number, block in enumerate(some)}


def check(done, block):
    code, printed = done[block]
    assert code == 0, f"{block} ended with {code}:\n{printed}"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_each_block_is_marked(block):
    """By a comment that says where a test runs it, or why none does."""
    assert block.roots or block.copy or block.why, (
        f"{block} has no mark before it; see tests/docs/blocks.py\n{block.text}"
    )
    assert set(block.roots) <= {*debian.RELEASES, "dnf", "vm"}, block
    if block.copy:
        there = {line for b in BLOCKS if b.page == block.copy and not b.copy for line in b.text.splitlines()}
        assert set(block.text.splitlines()) <= there, f"{block} differs from {block.copy}"


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs")
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def web(work):
    """The address of a web server on loopback that shows work/web, ending in a slash."""
    (work / "web").mkdir()
    with webserver.show(work / "web") as address:
        yield address


@functools.cache
def release(work, web, part, packages=PACKAGES):
    """Make a release of one part, for a publisher with this web server; its address."""
    url = f"{web}{part}-{len(packages)}/"
    out = work / "web" / url.split("/")[-2]
    conf = work / f"{out.name}.conf"
    assert not conf.exists(), f"the release {out.name} could not be made; an earlier test has its output"
    conf.write_text(f"[publisher]\nname = A test\nemail = a@b.example\nsecurity = a@b.example\nurl = {url}\n")
    env = {**os.environ, "ITREE_PUBLISHER": str(conf), "ITREE_RELEASE": "0.1"}
    env.pop("ITREE_SIGN_KEY", None)
    argv = [sys.executable, REPO / "packaging/release/build", *packages, "--part", part, "--out", out,
            "--packages", work / "packages"]  # fmt: skip
    res = subprocess.run([str(a) for a in argv], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    assert res.returncode == 0, res.stdout
    return url


@contextlib.contextmanager
def debian_root(work, name):
    """A root of a Debian release as its installer leaves it, with curl; a function that runs a shell script in it."""
    root = work / f"root-{name}"
    debian.make_root(name, ["curl", "ca-certificates", "e2fsprogs-l10n"], root)
    (root / "etc/apt/apt.conf.d/90-test").write_text(
        'APT::Get::Assume-Yes "true";\nDpkg::Use-Pty "0";\nAcquire::http::Proxy::127.0.0.1 "DIRECT";\n'
    )
    # Nothing runs in the root that a service could serve.
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (root / "usr/sbin/policy-rc.d").chmod(0o755)

    def run(text):
        mounts = "mount -t proc proc /proc; mount -t tmpfs tmpfs /tmp; cd /tmp"
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "no_proxy": "127.0.0.1"}
        words = [f"{name}={value}" for name, value in env.items()]
        argv = ["unshare", "--mount", "--propagation", "private", "env", "-i", "LC_ALL=C.UTF-8", *words, "chroot", root,
                "/bin/sh", "-c", f"{mounts}\n{text}"]  # fmt: skip
        return roots.call(*argv, ok=None)[1]

    try:
        yield run
    finally:
        shutil.rmtree(root, ignore_errors=True)


STATE = """dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'
find / -xdev -iname '*itree*' -o -xdev -iname '*diskorder*'"""


@functools.cache
def debian_door(work, web, name):
    """Run a release's blocks; (results, state before, state after)."""
    url = release(work, web, name)
    some = [b for b in BLOCKS if name in b.roots]
    words = {"URL": url.rstrip("/"), "bookworm": name, "libext2fs2": debian.RELEASES[name].library}
    with debian_root(work, name) as run:
        before = run(STATE)
        done = results(some, run(script(some, words)))
        return done, before, run(STATE)


needs_root = pytest.mark.skipif(bool(os.geteuid()), reason="a root of another system wants the rights of root")


@needs_root
@in_root("bookworm")
def test_bookworm(work, web, block):
    check(debian_door(work, web, "bookworm")[0], block)


def as_before(work, web, name):
    """The packages that the door brought are gone, Debian's e2fsprogs is back, no file with our names is left."""
    _, before, after = debian_door(work, web, name)
    assert re.search("(?m)^e2fsprogs 1", before), before
    assert sorted(set(after.splitlines()) ^ set(before.splitlines())) == []


@needs_root
def test_bookworm_is_as_before(work, web):
    as_before(work, web, "bookworm")


needs_trixie = pytest.mark.skipif(not FULL, reason="its packages are built in a root of Debian 13: ITREE_FULL=1")


@needs_root
@needs_trixie
@in_root("trixie")
def test_trixie(work, web, block):
    check(debian_door(work, web, "trixie")[0], block)


@needs_root
@needs_trixie
def test_trixie_is_as_before(work, web):
    as_before(work, web, "trixie")


class DnfRoot(roots.Root):
    """A root whose dnf reads the root's own repositories and keys; this host's dnf stands in for one inside."""

    def script(self, text):
        """Run a shell script in which dnf is called as on the host that the root stands for."""
        (self.aside / "bin").mkdir()
        (self.aside / "etc").mkdir()
        (self.aside / "etc/pki").symlink_to(self.path / "etc/pki")
        self.conf.write_text(re.sub("reposdir=.*", rf"\g<0>,{self.path}/etc/yum.repos.d", self.conf.read_text()))
        dnf = self.aside / "bin/dnf"
        dnf.write_text(f'#!/bin/sh\nexec {shutil.which("dnf")} -y -c {self.conf} --installroot {self.path} '
                       '--releasever 1 "$@"\n')  # fmt: skip
        dnf.chmod(0o755)
        mounts = f"mount -t overlay -o lowerdir={self.aside}/etc:/etc itree-test /etc"
        env = f"no_proxy=127.0.0.1 PATH={self.aside}/bin:$PATH"
        return roots.call("unshare", "--mount", "--propagation", "private", "sh", "-c",
                          f"{mounts}\nexport {env}\n{text}", ok=None)[1]  # fmt: skip


@functools.cache
def dnf_door(work, web):
    """The same with dnf. State is what is installed, and all files with their contents."""
    url = release(work, web, "rpm")
    some = [b for b in BLOCKS if "dnf" in b.roots]
    (work / "base").mkdir()
    root = DnfRoot(work / "root-dnf", {"base": roots.distribution(work / "base")})
    try:
        before = root.installed(), root.files()
        done = results(some, root.script(script(some, {"URL": url.rstrip("/")})))
        return done, before, (root.installed(), root.files())
    finally:
        root.close()


# The suite of the packages takes the same steps with its own repository, at each run.
needs_rpms = pytest.mark.skipif(not FULL, reason="its packages take minutes: ITREE_FULL=1")


@needs_root
@needs_rpms
@in_root("dnf")
def test_dnf(work, web, block):
    check(dnf_door(work, web)[0], block)


@needs_root
@needs_rpms
def test_dnf_is_as_before(work, web):
    _, before, after = dnf_door(work, web)
    assert after[0] == before[0]
    assert {name: before[1][name] for name in before[1] if before[1][name] != after[1].get(name)} == {}
    # Empty directories that a distribution's own packages own; here no package does.
    assert {name for name in after[1] if name not in before[1] and after[1][name] is not False} == set()


# 4,000 names of 40 characters, some of which have gone: a directory with room to pack, and large enough for a tree.
FILL = """
fill() {
	mkdir -p "$1/new" && (cd "$1/new" && seq -f 'message-%028.0f' 4000 | xargs touch && ls | sed -n '1~4!p' | xargs rm)
}
plain() {
	umount /srv/mail 2>/dev/null
	mke2fs -q -F -t ext4 DEVICE && mount DEVICE /srv/mail && fill /srv/mail
}
mkdir -p /srv/mail /var/mail /run/bin
printf '#!/bin/sh\\nexec "$@"\\n' >/run/bin/sudo && chmod +x /run/bin/sudo
export PATH=/run/bin:SBIN:$PATH
cd /run
mke2fs -q -F -t ext4 OTHER && mount OTHER /var/mail && fill /var/mail
"""
AFTER = """
( ls /srv/mail/new | wc -l; e4itree check -r /srv/mail; umount /srv/mail; e2fsck -fn DEVICE ) 2>&1
echo '=== 999' $?
"""


@functools.cache
def vm_page(work, web, page):
    """Run a page's blocks in our kernel; (results, how the machine ended)."""
    release(work, web, "bookworm", ("itree-advise",))  # seconds
    some = [b for b in BLOCKS if b.page == page and "vm" in b.roots]
    disks = [work / f"{page.replace('/', '-')}-{n}.img" for n in range(2)]
    for path in disks:
        with open(path, "wb") as handle:
            handle.truncate(256 << 20)
    device, other = (f"/dev/{uml.disk_name(n)}" for n in range(2))
    # The machine has no network.
    words = {"URL": f"file://{work}/web/bookworm-1", "MOUNTPOINT": "/srv/mail", "DIRECTORY": "new"}
    text = FILL.replace("SBIN", str(SBIN)).replace("OTHER", other) + script(some, words, "plain") + AFTER
    res = vm.run(text.replace("DEVICE", device), kernel=KERNEL, disks=disks, memory="512M", timeout=300)
    return results(some, res.stdout), res


@in_root("vm")
def test_vm(work, web, block):
    check(vm_page(work, web, block.page)[0], block)


@pytest.mark.parametrize("page", sorted({b.page for b in BLOCKS if "vm" in b.roots}))
def test_volumes_are_sound_afterwards(work, web, page):
    _, res = vm_page(work, web, page)
    assert res.ok, res.explain()
    assert re.search(r"(?m)^=== 999 0$", res.stdout), res.stdout[-3000:]


MARKED = "<!-- {mark} -->\n\n    true   # a comment\n    {second}\n"


@pytest.mark.parametrize(("second", "code"), [("true", 0), ("false", 1), ("exit 7", 7)])
def test_a_failing_line_fails_its_block(tmp_path, second, code):
    (tmp_path / "page.md").write_text(MARKED.format(mark="run: vm", second=second) + "\ntext\n\n    true\n")
    some = blocks.read(tmp_path / "page.md", tmp_path)
    assert [b.roots for b in some] == [("vm",), ()] and some[1].why is None
    done = results(some, roots.call("sh", "-c", script(some, {}))[1])
    assert [done[b][0] for b in some] == [code, 0]


def test_marks(tmp_path):
    (tmp_path / "page.md").write_text(
        MARKED.format(mark="run: vm, from a volume without the feature", second="x")
        + MARKED.format(mark="not run: a reason", second="x") + MARKED.format(mark="run: mars", second="x")
        + MARKED.format(mark="as in: README.md", second="x")
    )  # fmt: skip
    some = blocks.read(tmp_path / "page.md", tmp_path)
    assert [(b.roots, b.plain, b.copy, b.why) for b in some] == [
        (("vm",), True, None, None), ((), False, None, "a reason"), (("mars",), False, None, None),
        ((), False, "README.md", None),
    ]  # fmt: skip
