# SPDX-License-Identifier: GPL-2.0-only
"""Roots to install RPMs into, and a small distribution for them made from this host's files."""

import functools
import os
import pathlib
import re
import shutil
import time

import command

HERE = pathlib.Path(__file__).resolve().parents[1] / "packages"
# What runs in a root, and the libraries that our packages and these need.
PROGRAMS = ("/bin/dash", "/bin/bash", "/bin/ls", "/bin/cat", "/bin/rm", "/bin/mkdir", "/bin/tar", "/bin/readlink",
            "/usr/bin/dirname", "/usr/bin/touch", "/usr/bin/seq", "/usr/bin/xargs")  # fmt: skip
LIBRARIES = ("libblkid.so.1", "libuuid.so.1", "libcom_err.so.2", "libss.so.2", "libfuse3.so.3", "libacl.so.1",
             "libattr.so.1", "libcap.so.2", "libcrypto.so.3", "liblz4.so.1", "libpopt.so.0", "libselinux.so.1",
             "libxxhash.so.0", "libz.so.1", "libzstd.so.1")  # fmt: skip


# Package managers may take longer than other commands.
call = functools.partial(command.run, timeout=None)


def there(name, index="repo/repodata"):
    """What packaging/*/build made before, if ITREE_PACKAGES names a directory that has it, at the tests' release.

    For packages that were built on another machine, and for whoever works on one of these tests.
    """
    built = pathlib.Path(os.environ.get("ITREE_PACKAGES", "/nonexistent")) / name
    return built if (built / index).exists() else None


def library(name):
    """Where the host's loader finds a library."""
    found = re.search(rf"^\s*{re.escape(name)} \(.*x86-64.*\) => (\S+)", call("/sbin/ldconfig", "-p")[1], re.M)
    assert found, f"{name} is not installed on this host: run `make deps`"
    return pathlib.Path(found[1])


def needed(paths):
    """Libraries, and the loader, that these files are linked with."""
    text = "".join(call("ldd", p)[1] for p in paths)
    return {pathlib.Path(p) for p in re.findall(r"(/\S+) \(0x", text)}


def needed_by_all(programs):
    """The same of many files, some of which may be linked with nothing."""
    text = call("ldd", *programs, ok=None)[1]
    return {pathlib.Path(p) for p in re.findall(r"^\s.*?(/\S+) \(0x", text, re.M)}


def put(src, dest):
    """Copy a file with the name it is asked for by, and with its real name if that is another."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(src.resolve(), dest)
    dest.chmod(0o755)


def rpmbuild(spec, top, *options):
    call("rpmbuild", "-bb", "--nodeps", "--define", f"_topdir {top}", "--define", "__os_install_post %{nil}",
         "--define", "_build_id_links none", *options, spec)  # fmt: skip
    return sorted((top / "RPMS").rglob("*.rpm"))


def distribution(top):
    """A repository of test-base and what stands for packages of the distribution; its directory."""
    tree = top / "tree"
    for name in PROGRAMS:
        put(pathlib.Path(name), tree / "bin" / pathlib.Path(name).name)
    (tree / "bin" / "sh").symlink_to("dash")
    # The plain one: Debian's ldconfig is a script around it.
    ldconfig = pathlib.Path("/sbin/ldconfig.real")
    put(ldconfig if ldconfig.exists() else pathlib.Path("/sbin/ldconfig"), tree / "sbin" / "ldconfig")
    libraries = [library(n) for n in LIBRARIES]
    ours = ("libext2fs.so.2", "libe2p.so.2")
    tools = ["/sbin/mke2fs", "/sbin/e2fsck", "/sbin/lvm", "/usr/bin/findmnt"]
    for path in needed([*PROGRAMS, *libraries, *tools]) | set(libraries):
        if path.name.startswith("ld-linux"):
            put(path, tree / "lib64" / path.name)
        elif path.name not in ours:
            put(path, tree / "lib" / path.name)
    for name in ours:
        put(library(name), tree / "usr" / "lib64" / name)
    for tool in (*tools, "/sbin/e2scrub"):
        put(pathlib.Path(tool), tree / "usr" / tool.removeprefix("/usr")[1:])
    (tree / "etc").mkdir()
    shutil.copy("/etc/mke2fs.conf", tree / "etc")
    (tree / "etc" / "ld.so.conf").write_text("/lib\n/usr/lib64\n")
    (tree / "usr" / "base").write_text("the base system of a test root\n")
    spec = top / "base.spec"
    spec.write_text((HERE / "base.spec.in").read_text().replace("@TREE@", str(tree)))
    repo = top / "repo"
    repo.mkdir()
    for path in rpmbuild(spec, top):
        shutil.copy(path, repo)
    call("createrepo_c", "--quiet", repo)
    shutil.rmtree(tree)
    return repo


def unmount(path):
    """Unmount; what a scriptlet left running for a moment is waited for, and does not keep the mount for ever."""
    for _ in range(20):
        if call("umount", path, ok=None)[0] == 0:
            return
        time.sleep(0.25)
    call("umount", "--lazy", path)


def mount_devices(path):
    """A /dev with what shell scripts need, on a directory."""
    call("mount", "-t", "tmpfs", "-o", "mode=755,size=1M", "itree-test", path)
    for name, minor in (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)):
        os.mknod(path / name, 0o20666, os.makedev(1, minor))
        (path / name).chmod(0o666)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (path / name).symlink_to(f"/proc/self/fd/{number}")
    (path / "fd").symlink_to("/proc/self/fd")


class Root:
    """An installed system in a directory. repos is {name: directory}; all but `base` are checked like a stranger's.

    size, as mount takes it, makes it a tmpfs of that size.
    """

    def __init__(self, path, repos, first=("test-base", "e2fsprogs"), size=None):
        self.path = path
        self.output = ""  # by dnf so far
        self.aside = path.with_name(path.name + ".dnf")
        (self.aside / "repos").mkdir(parents=True)
        path.mkdir()
        self.mounted = bool(size)
        if size:
            call("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "itree-test", path)
        self.conf = self.aside / "dnf.conf"
        self.conf.write_text(
            f"[main]\nreposdir={self.aside}/repos\ncachedir={self.aside}/cache\nlogdir={self.aside}/log\n"
            "gpgcheck=1\nplugins=0\ninstallonly_limit=3\nclean_requirements_on_remove=1\nzchunk=0\n"
        )
        try:
            self.prepare()
            self.repos(**repos)
            self.dnf("install", *first)
        except BaseException:
            self.close()
            raise

    def prepare(self):
        """What must be there before the first package."""

    def repos(self, **repos):
        for name, directory in repos.items():
            self.repo(name, directory, **({"gpgcheck": 0, "repo_gpgcheck": 0} if name == "base" else {}))

    def repo(self, name, directory, **options):
        """Tell dnf of a repository; unless options say otherwise its key is beside it, and all is checked."""
        words = {"name": name, "baseurl": f"file://{directory}", "metadata_expire": 0, "gpgcheck": 1,
                 "repo_gpgcheck": 1, "gpgkey": f"file://{directory}/RPM-GPG-KEY-itree", **options}  # fmt: skip
        text = f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in words.items())
        (self.aside / "repos" / f"{name}.repo").write_text(text)

    def dnf(self, *args, ok=(0,)):
        """Run dnf on the root; everything it printed."""
        __tracebackhide__ = True
        argv = ["dnf", "-y", "-c", self.conf, "--installroot", self.path, "--releasever", "1", *args]
        text = call(*argv, ok=ok)[1]
        self.output += text
        return text

    def rpm(self, *args, ok=(0,)):
        __tracebackhide__ = True
        return call("rpm", "--root", self.path, *args, ok=ok)[1]

    def installed(self):
        """Names and versions, as a sorted list; keys aside."""
        text = self.rpm("-qa", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\\n")
        return sorted(n for n in text.split() if not n.startswith("gpg-pubkey"))

    def chroot(self, script, ok=(0,)):
        __tracebackhide__ = True
        return call("chroot", self.path, "/bin/sh", "-ec", script, ok=ok)[1]

    def files(self):
        """All paths with type and content, but the package database, caches, logs, and what is mounted or may be."""
        out = {}
        aside = ("var", "tmp", "root", "proc", "dev", "boot")
        for path in sorted(p for top in self.path.iterdir() if top.name not in aside for p in (top, *top.rglob("*"))):
            rel = path.relative_to(self.path)
            if str(rel) == "etc/ld.so.cache":
                continue
            out[str(rel)] = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        return out

    def close(self):
        if self.mounted:
            unmount(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.rmtree(self.aside, ignore_errors=True)
