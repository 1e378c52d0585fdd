# SPDX-License-Identifier: GPL-2.0-only
"""What ext4itree-dkms asks of DKMS when rpm installs, upgrades and removes it.

DKMS is Debian's, in a copy of this host: there is no EL or Fedora here. packaging/rpm/try-on-host is for these.
"""

import os
import re

import debhost
import pytest
import roots
import sources
import stock
import treebuild as tb

TOO_OLD = "/usr/src/linux-headers-6.1.0-1-amd64"
full = pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="compiles for a minute: ITREE_FULL=1")


def headers(root, release, directory):
    """Let DKMS find the headers of a kernel in the copy."""
    modules = root / "lib" / "modules" / release
    modules.mkdir(parents=True, exist_ok=True)
    (modules / "build").symlink_to(directory)


@pytest.fixture
def host(old, new, tmp_path):
    """A copy of this host with DKMS, both packages in /repo, and the headers of a kernel that is too old."""
    (tmp_path / "repo").mkdir()
    for number, repo in enumerate((old, new), 1):
        (package,) = (repo / "RPMS").glob("ext4itree-dkms-*.rpm")
        (tmp_path / "repo" / f"{number}.rpm").symlink_to(package)
    with debhost.copy_of_this_host(tmp_path / "repo") as made:
        made.mount("proc", "proc")
        roots.mount_devices(made.root / "dev")
        made.mounts.append(made.root / "dev")
        stock.unpack(sources.Mirror(tb.cache_dir() / "stock-kernels" / "mirror"), ("dkms",), made.root)
        made.run(f"mkdir -p /var/lib/dkms {TOO_OLD}; touch {TOO_OLD}/Makefile")
        headers(made.root, "6.1.0-1-amd64", TOO_OLD)
        # rpm of Debian has no packages to look dependencies up in.
        made.rpm = lambda *args: made.run(f"rpm {' '.join(args)} 2>&1")
        made.status = lambda: made.run("dkms status")
        yield made


def test_dkms_knows_the_module_while_it_is_installed(host):
    output = host.rpm("-i", "--nodeps", "/repo/1.rpm")
    assert re.fullmatch(r"ext4itree/[0-9.+]+\.0\.1: added\n", host.status()), host.status()
    assert "ext4itree was not built for 6.1.0-1-amd64: see ext4itree(5)" in output, output
    assert host.rpm("-V", "--nodeps", "ext4itree-dkms") == ""
    host.rpm("-U", "--nodeps", "/repo/2.rpm")
    assert re.fullmatch(r"ext4itree/[0-9.+]+\.0\.2: added\n", host.status()), host.status()
    # Installed again, the package removes itself after it was installed.
    host.rpm("-U", "--nodeps", "--replacepkgs", "/repo/2.rpm")
    assert re.fullmatch(r"ext4itree/[0-9.+]+\.0\.2: added\n", host.status()), host.status()
    host.rpm("-e", "ext4itree-dkms")
    assert host.status() == "" and host.run("ls /usr/src").find("ext4itree") < 0


@full
def test_the_module_is_built(host):
    made = stock.kernel(bootable=False)
    headers(host.root, made.release, made.headers)
    output = host.rpm("-i", "--nodeps", "/repo/1.rpm")
    assert f"{made.release}, x86_64: installed" in host.status(), output
    assert "fs-ext4itree" in host.run(f"modinfo -F alias /lib/modules/{made.release}/updates/dkms/ext4itree.ko*")
    host.rpm("-e", "ext4itree-dkms")
    assert host.status() == "" and not list((host.root / "lib/modules" / made.release).rglob("ext4itree.ko*"))
