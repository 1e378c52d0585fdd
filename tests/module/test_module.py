# SPDX-License-Identifier: GPL-2.0-only
"""The module ext4itree beside the ext4 of the distribution's kernel."""

import os
import re
import shutil
import subprocess
import time

import debian
import pytest
import sources
import stock
import treebuild as tb
import vm
from conftest import REPO

SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"
PREPARE = f"set -e; export PATH={SBIN}:$PATH; mkdir /run/a /run/b; "


@pytest.fixture
def disk(tmp_path):
    def make(name, *options):
        path = tmp_path / name
        with open(path, "wb") as handle:
            handle.truncate(128 << 20)
        subprocess.run([SBIN / "mke2fs", "-q", "-F", "-t", "ext4", *options, path], check=True)
        return path

    return make


def in_guest(kernel, script, disks, ok=True):
    """Run a script on that kernel; what it printed, and what the kernel's log holds."""
    res = vm.run(PREPARE + script, kernel=kernel.image, disks=disks, timeout=900)
    assert res.ok == ok, f"{res.explain()}\n{res.stdout}\n{res.stderr[-3000:]}"
    return res.stdout, res.log_text()


def test_two_ext4_at_once(kernel, disk):
    """Both are loaded and in use: every registered name differs, and the kernel reports no clash."""
    two_at_once(kernel, disk)


def two_at_once(kernel, disk):
    disks = [disk("theirs"), disk("ours", "-O", "itree")]
    fill = "mkdir {0}/d; (cd {0}/d; seq -f 'a-name-that-is-not-short-%g' 5000 | xargs touch); ls -U {0}/d | wc -l; "
    output, log = in_guest(
        kernel,
        "mount -t ext4 /dev/vda /run/a; mount -t ext4itree /dev/vdb /run/b; "
        + fill.format("/run/a") + fill.format("/run/b")
        + "mount -t tracefs none /sys/kernel/tracing 2>/dev/null || true; "
        "for d in /sys/fs /proc/fs /sys/kernel/tracing/events; do ls -d $d/ext4*; done; "
        "grep ext /proc/filesystems | sed 's,^,type ,'; ls /sys/kernel/slab | grep ext4 | sed 's,^,slab ,'; "
        "ls /sys/fs/ext4itree /sys/fs/ext4 | sort | uniq -c | grep vd; lsattr -d /run/b/d; umount /run/a /run/b; "
        "rmmod ext4itree; test -e /sys/fs/ext4; test ! -e /sys/fs/ext4itree; ! grep ext4itree /proc/filesystems",
        disks,
    )  # fmt: skip
    assert output.splitlines().count("5000") == 2
    for place in ("/sys/fs", "/proc/fs", "/sys/kernel/tracing/events"):
        assert f"{place}/ext4\n" in output and f"{place}/ext4itree\n" in output, output
    types = re.findall(r"^type \s*(\S+)$", output, re.M)
    assert sorted(types) == ["ext2", "ext3", "ext4", "ext4itree"], types
    slabs = re.findall(r"^slab (\S+)$", output, re.M)
    ours = [s for s in slabs if s.startswith("ext4itree_")]
    # Some caches are created on first use only.
    assert len(ours) >= 8 and "ext4_inode_cache" in slabs and "ext4itree_inode_cache" in slabs, slabs
    assert re.search(r"^-+I\S* /run/b/d$", output, re.M), output
    assert "already" not in log.split("Run /init")[-1], log
    for path in disks:
        subprocess.run([SBIN / "e2fsck", "-fn", path], check=True, capture_output=True)


def test_stock_ext4_takes_the_volume_when_the_feature_is_off(kernel, disk):
    """Stock ext4 mounts a volume with the feature read-only, and one without it read-write."""
    output, _ = in_guest(
        kernel,
        "mount -t ext4itree /dev/vda /run/a; mkdir /run/a/d; (cd /run/a/d; seq -f 'a-name-that-is-not-short-%g' 5000 "
        "| xargs touch); umount /run/a; ! mount -t ext4 /dev/vda /run/a; mount -t ext4 -o ro /dev/vda /run/a; "
        "ls -U /run/a/d | wc -l; umount /run/a; tune2fs -O ^itree /dev/vda; mount -t ext4 /dev/vda /run/a; "
        "touch /run/a/d/more; ls -U /run/a/d | wc -l; umount /run/a; e2fsck -fn /dev/vda",
        [disk("image", "-O", "itree")],
    )
    assert "5000\n" in output and "5001\n" in output


def test_programs_that_look_at_the_type(kernel, disk):
    """e4defrag works on the type, and tune2fs knows how long its labels may be."""
    output, _ = in_guest(
        kernel,
        "mount -t ext4itree /dev/vda /run/a; dd if=/dev/urandom of=/run/a/f bs=64k count=4 status=none; sync; "
        "e4defrag /run/a/f; tune2fs -L a-label-of-more-than-16-characters /dev/vda; umount /run/a; e2label /dev/vda",
        [disk("image", "-O", "itree")],
    )
    assert "Success" in output and output.endswith("a-label-of-more-\n"), output


def test_try_on_host(kernel, tmp_path):
    """packaging/rpm/try-on-host --installed reports each step, whether it passed or failed, and leaves nothing behind.

    To install and remove the packages it wants dnf and an EL or a Fedora.
    """
    script = REPO / "packaging" / "rpm" / "try-on-host"
    output, _ = in_guest(
        kernel,
        f"ln -s {REPO}/kernel/module/mkfs.ext4itree /run/; ln -s {SBIN}/e2fsck /run/fsck.ext4itree; "
        # The distribution's lsattr does not know the letter of the tree; the packages bring ours.
        f"ln -s {SBIN.parent}/bin/lsattr /run/; "
        f"mount --bind {SBIN}/mke2fs /sbin/mke2fs; mkdir /run/aside; mount --bind /run/aside /var/tmp; "
        "export PATH=/run:$PATH; cd /run; "
        f"{script} --installed --report /run/report >/dev/null; cat report; "
        # A volume that cannot be mounted: steps fail, and nothing stays behind.
        "mkdir stub; printf '#!/bin/sh\nexit 1\n' >stub/mount; chmod +x stub/mount; "
        f"PATH=/run/stub:$PATH {script} --installed >said && exit 1; "
        "grep -c ^FAILED said; ls -A /var/tmp; grep -c /var/tmp/ /proc/mounts || true",
        [],
    )
    report, _, rest = output.partition("0 steps failed\n")
    steps = [line for line in report.splitlines() if re.match("passed|FAILED|skipped", line)]
    assert len(steps) >= 14 and all(s.startswith("passed") for s in steps), output
    assert int(rest.split()[0]) >= 5 and rest.split()[1:] == ["0"], rest


def test_a_kernel_that_changed_its_names_is_refused():
    """The build counts each name that it changes, so that none of ext4's own is left in the module."""
    build = tb.load_script(REPO / "kernel" / "module" / "build")
    text = 'static const char proc_dirname[] = "fs/ext4";\n\text4_root = kobject_create_and_add("ext4", fs_kobj);\n'
    assert build.renamed("sysfs.c", text, "6.12.1") == text.replace('ext4"', 'ext4itree"')
    with pytest.raises(tb.BuildError, match=r"sysfs\.c of Linux 6\.12\.1 .* 2 times, not 1"):
        build.renamed("sysfs.c", text + text, "6.12.1")


def test_what_is_the_same_is_not_built_again(tmp_path):
    """Unchanged files keep their times; files that ext4 no longer has are removed."""
    build = tb.load_script(REPO / "kernel" / "module" / "build")
    for name in ("new", "old"):
        (tmp_path / name / "include").mkdir(parents=True)
        (tmp_path / name / "same.c").write_text("int x;\n")
    (tmp_path / "new" / "include" / "more.h").write_text("")
    (tmp_path / "old" / "gone.c").write_text("")
    (tmp_path / "old" / "built.mod.c").write_text("")
    os.utime(tmp_path / "old" / "same.c", (1000, 1000))
    build.sync(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "same.c").stat().st_mtime == 1000
    assert (tmp_path / "old" / "include" / "more.h").exists() and (tmp_path / "old" / "built.mod.c").exists()
    assert not (tmp_path / "old" / "gone.c").exists()


def releases():
    """Releases to build for: with ITREE_FULL=1 all, else the oldest. The other tests use the newest."""
    try:
        found = stock.releases(sources.Mirror(tb.cache_dir() / "stock-kernels" / "mirror"))
    except sources.SourceError:
        return []
    return found[:-1] if os.environ.get("ITREE_FULL") else found[:1]


@pytest.mark.parametrize("release", releases())
def test_builds_for(release, tmp_path):
    """The module builds without a warning for each 6.12 that the distribution offers."""
    made = stock.kernel(release, bootable=False)
    res = subprocess.run([REPO / "kernel" / "module" / "build", "--kernel", made.headers, "--out", tmp_path],
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert res.returncode == 0, res.stderr
    output = subprocess.run(["modinfo", tmp_path / "ext4itree.ko"], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^vermagic: +{re.escape(release)} ", output, re.M), output
    assert re.findall(r"^alias: +(\S+)$", output, re.M) == ["fs-ext4itree"], output


# Headers of all kernels of our series that Debian 13 and its backports have, and the newest kernel of each series.
ALL_KERNELS = r"""#!/bin/sh
set -eu
names=$(chroot "$1" apt-cache search --names-only '^linux-headers-[0-9]+[.][0-9]+[.].*-amd64$' | cut -d' ' -f1 |
	grep -Ev -- '-(cloud|rt)-' | grep -E '^linux-headers-(@SERIES@)[.]' | sort -V)
for series in $(echo '@SERIES@' | tr '|' ' '); do
	newest=$(echo "$names" | grep -F "headers-$series." | tail -n 1)
	names="$names linux-image-${newest#linux-headers-}"
done
chroot "$1" apt-get -q -y -t trixie-backports install $names
chroot "$1" apt-get clean
"""
KERNEL = tb.load_script(REPO / "kernel" / "build")
SERIES = list(KERNEL.bases())


@pytest.fixture(scope="module")
def debian_13(tmp_path_factory):
    """A root of Debian 13 with DKMS, the module's source and ALL_KERNELS. Gives it and the module's version."""
    if not os.environ.get("ITREE_FULL"):
        pytest.skip("takes minutes: ITREE_FULL=1")
    if os.geteuid():
        pytest.skip("making a root file system takes root")
    top = tmp_path_factory.mktemp("debian-13")
    hook = top / "hook"
    hook.write_text(ALL_KERNELS.replace("@SERIES@", "|".join(SERIES)))
    hook.chmod(0o755)
    packages = ("linux-image-amd64", "linux-headers-amd64", "dkms", "openssl", "initramfs-tools")
    debian.make_root("trixie", packages, top / "root", f"--customize-hook={hook}",
                     listed=debian.apt_sources(release="trixie trixie-backports"))  # fmt: skip
    subprocess.run([REPO / "kernel" / "module" / "build", "--source", top / "source"], check=True)
    version = re.search(r'PACKAGE_VERSION="(.*)"', (top / "source" / "dkms.conf").read_text())[1]
    shutil.copytree(top / "source", top / "root" / "usr" / "src" / f"ext4itree-{version}")
    return top / "root", version


def dkms_install(root, version, release):
    """Have the root's DKMS build and install the module for one of its kernels."""
    script = f"mount -t proc proc /proc; dkms install ext4itree/{version} -k {release}; dkms status"
    output = subprocess.run(["unshare", "--mount", "chroot", root, "sh", "-ec", script], capture_output=True, text=True,
                            check=False)  # fmt: skip
    assert output.returncode == 0 and f"{release}, x86_64: installed" in output.stdout, output


def test_headers_of_debian_13(debian_13):
    """Its DKMS and compiler build the module for each kernel of our series that it and its backports have."""
    root, version = debian_13
    found = sorted(p.name for p in (root / "lib" / "modules").iterdir() if (p / "build").is_symlink())
    assert {".".join(name.split(".")[:2]) for name in found} == set(SERIES), found
    for release in found:
        start = time.monotonic()
        dkms_install(root, version, release)
        print(f"{release}: {time.monotonic() - start:.0f} s")


@pytest.mark.parametrize("series", SERIES)
def test_debian_13(debian_13, disk, series):
    """The newest of its kernels of a series mounts volumes of both kinds."""
    root, version = debian_13
    images = [p.name.removeprefix("vmlinuz-") for p in (root / "boot").glob(f"vmlinuz-{series}.*")]
    release = max(images, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    dkms_install(root, version, release)
    two_at_once(stock.Stock(release, root), disk)


def test_a_kernel_of_another_series_is_refused(tmp_path):
    """The message says what the module is for, and how to read the volume without it."""
    (tmp_path / "include" / "config").mkdir(parents=True)
    (tmp_path / "include" / "config" / "kernel.release").write_text("6.1.0-50-amd64\n")
    (tmp_path / "Makefile").touch()
    res = subprocess.run([REPO / "kernel" / "module" / "build", "--kernel", tmp_path], capture_output=True, text=True,
                         check=False)  # fmt: skip
    assert res.returncode == 1 and f"{KERNEL.listed(SERIES)}, not for 6.1.0-50-amd64" in res.stderr, res.stderr
    assert "tune2fs -O ^itree" in res.stderr


def test_without_headers_it_says_what_to_install():
    res = subprocess.run([REPO / "kernel" / "module" / "build", "--kernel", "6.12.0-none"], capture_output=True,
                         text=True, check=False)  # fmt: skip
    assert res.returncode == 1 and "linux-headers" in res.stderr and "6.12.0-none" in res.stderr, res.stderr
