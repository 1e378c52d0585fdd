# SPDX-License-Identifier: GPL-2.0-only
"""The role packages: all tools, everything that itree-storage-server recommends, and never the kernel."""

import re
import shutil

import pytest
import repositories
from conftest import REPO
from test_rollback import SHIM, dnf_host

SPEC = REPO / "packaging" / "rpm" / "itree-storage-server.spec.in"
DEB = REPO / "packaging" / "deb"
KERNEL = "kernel-itree"


def relations():
    """(Lines of relations, names required, names recommended) of itree-storage-server as it is packed."""
    lines = re.findall(r"^(?:Requires|Recommends):.*$", SPEC.read_text(), re.M)
    words = [re.match(r"(\w+):\s+\(?([\w-]+)", line).groups() for line in lines]
    return lines, *([name for kind, name in words if kind == which] for which in ("Requires", "Recommends"))


def test_dnf(collection, sandbox, tmp_path):
    """The distribution's e2fsprogs swapped for ours; no kernel; e2scrub-itree on a host that has lvm2."""
    if not shutil.which("dnf"):
        pytest.skip("no dnf on this host")
    lines, required, recommended = relations()
    assert KERNEL in recommended
    packages = {name: [] for name in ("test-base", "e2fsprogs", "lvm2", "itree-advise", *required, *recommended)}
    packages["itree-storage-server"] = lines
    packages["e2fsprogs-itree"] = ["Provides: e2fsprogs = 2", "Conflicts: e2fsprogs"]
    dnf_host(sandbox, repositories.dnf_relations(tmp_path / "packages", packages))
    # The role asks it at the end; on these hosts no package has it.
    sandbox.put("/usr/sbin/e4itree", "#!/bin/sh\necho e4itree\n", 0o755)

    def play(*options):
        played = collection.role("packages", *options, before=sandbox.before).good()
        return played.changed()["here"], set(sandbox.run("rpm", "-qa", "--qf", "%{NAME}\n").split())

    before = {"test-base", "e2fsprogs"}
    assert play("--check") == (1, before)
    ours = {"itree-storage-server", "itree-advise", *required, *recommended} - {KERNEL}
    assert play() == (1, {"test-base", *ours} - {"e2scrub-itree"})
    sandbox.run("dnf", "-qy", "--setopt=install_weak_deps=False", "install", "lvm2")
    assert play() == (1, {"test-base", "lvm2", *ours})
    assert play()[0] == 0
    # Left to itself dnf would have brought it.
    sandbox.run("dnf", "-qy", "remove", "itree-storage-server")
    sandbox.run("dnf", "-qy", "install", "itree-storage-server")
    sandbox.run("rpm", "-q", KERNEL)


STOCK, OURS = "1.47.0-2.1", "1.47.0-99~itree0.1"


def fields(name):
    """Relations in the control file of packaging/deb/NAME, without those that debhelper fills in."""
    text = re.sub(r", [$][{][^}]*[}]", "", (DEB / name / "control.in").read_text())
    lines = re.findall(r"^(?:Depends|Recommends|Suggests): .*\n", text.replace("@E2FSPROGS@", "1.47.0"), re.M)
    return "".join(line for line in lines if "$" not in line)


def e2fsprogs(version):
    return {"e2fsprogs": (version, f"Pre-Depends: libext2fs2 (= {version})\n"), "libext2fs2": (version, "")}


def test_apt(collection, sandbox, tmp_path):
    """All tools on a Debian host, foretold by check mode; rollback leaves none, not even its configuration."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    tools = ["coreutils-itree", "diskorder", "rsync-itree", "tar-itree"]
    packages = {
        **e2fsprogs(OURS),
        "itree-storage-server": ("1-0.1", fields("server")),
        "itree-advise": ("1.0.1", fields("advise")),
        **{name: ("1-0.1", "" if name == "diskorder" else "Depends: diskorder\n") for name in tools},
        "linux-image-itree": ("1", ""),
        "itree-archive-keyring": ("1", ""),
    }
    assert "linux-image-itree" in packages["itree-storage-server"][1]
    contents = {"e2fsprogs": {"usr/sbin/e4itree": "#!/bin/sh\necho e4itree\n"},
                **{n: {f"etc/itree-test/{n}": "settings\n"} for n in ("itree-advise", "itree-archive-keyring", *tools)}}
    ours, key = repositories.apt_relations(tmp_path / "ours", packages, contents)
    stock, _key = repositories.apt_relations(tmp_path / "stock", e2fsprogs(STOCK))
    sandbox.run("sh", "-c", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*")
    sandbox.put("/etc/apt/apt.conf.d/99test", 'APT::Sandbox::User "root";\nAPT::Install-Recommends "true";\n')
    sandbox.put("/etc/apt/sources.list.d/stock.list", f"deb [trusted=yes] file:{stock} ./\n")
    sandbox.put("/usr/bin/lsblk", SHIM, 0o755)
    sandbox.run("sh", "-c", "apt-get -q update && apt-get -qy install e2fsprogs")

    def installed():
        query = ("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n", *packages)
        lines = [line.split() for line in sandbox.run(*query, ok=(0, 1)).splitlines()]
        return {words[1]: tuple(words[::2]) for words in lines if words[0] in ("ii", "rc")}

    def role(name, *options):
        rollback = {"itree_rollback_volumes": [], "itree_rollback_kernel": False} if name == "rollback" else {}
        return collection.role(name, *options, before=sandbox.before, **rollback)

    def changed(name, *options):
        return role(name, *options).good().changed()["here"]

    before = dict.fromkeys(("e2fsprogs", "libext2fs2"), ("ii", STOCK))
    # Apt does not know the repository yet; check mode says what comes.
    foretold = role("packages", "--check").good()
    assert foretold.changed()["here"] == 1 and installed() == before
    assert "itree-storage-server, coreutils-itree, itree-advise would be installed" in " ".join(foretold.text.split())
    variables = {"itree_repo_url": f"file://{ours}", "itree_repo_key": str(key)}
    collection.role("repo", before=sandbox.before, **variables).good()
    assert changed("packages", "--check") == 1 and installed() == before
    assert changed("packages") == 1
    wanted = {n: ("ii", v) for n, (v, _) in packages.items() if n not in ("linux-image-itree", "itree-archive-keyring")}
    assert installed() == wanted
    # A host from before has e4itree and nothing else.
    sandbox.run("apt-get", "-qy", "purge", "diskorder", "itree-advise", "itree-storage-server")
    assert changed("packages") == 1 and installed() == wanted
    assert changed("packages") == 0

    sandbox.run("apt-get", "-qy", "install", "itree-archive-keyring")
    held = ("e2fsprogs", "itree-archive-keyring", "tar-itree")
    sandbox.run("apt-mark", "hold", *held)
    role("rollback").bad(f"{', '.join(held)}: on hold", "Nothing was changed")
    sandbox.run("apt-mark", "unhold", *held)
    # As an earlier rollback has left it.
    sandbox.run("apt-get", "-qy", "remove", "coreutils-itree")
    assert installed()["coreutils-itree"][0] == "rc"
    there = installed()
    assert changed("rollback", "--check") > 0 and installed() == there
    assert changed("rollback") > 0
    assert installed() == before
    assert changed("rollback") == 0
