# SPDX-License-Identifier: GPL-2.0-only
"""What is built: lint, the same bytes by another user elsewhere, sources that are ours and the pristine one."""

import hashlib
import os
import pathlib
import re
import shutil
import tempfile

import backup
import pytest
import roots
from conftest import AGAIN, REPO

RPM = REPO / "packaging" / "rpm"
NOBODY = 65534


def names(directory):
    return sorted(p.name for p in directory.glob("*.rpm"))


def test_rpmlint(old):
    """Clean, but for what packaging/rpm/rpmlint.toml excuses with a reason."""
    packages = [*sorted((old / "RPMS").glob("*.rpm")), *sorted((old / "SRPMS").glob("*.rpm"))]
    code, output = roots.call("rpmlint", "-c", RPM / "rpmlint.toml", *packages, ok=None)
    assert re.search(rf"{len(packages)} packages .* checked; 0 errors, 0 warnings", output) and code == 0, output


def test_each_program_has_its_page(old):
    paths = roots.call("rpm", "-qpl", *sorted((old / "RPMS").glob("*.rpm")))[1].split()
    programs = [p.rsplit("/", 1)[1] for p in paths if re.match(r"/usr/(s?bin|libexec/diskorder/bin)/.", p)]
    assert len(programs) > 25 and {"tar", "rsync", "diskorder"} <= set(programs)
    for name in programs:
        assert any(re.search(rf"/man[18]/{re.escape(name)}\.[18]", p) for p in paths), f"{name} has no man page"


def test_sources_are_the_pristine_one_and_ours(old, tmp_path):
    (srpm,) = (old / "SRPMS").glob("e2fsprogs-itree-*.src.rpm")
    roots.call("sh", "-c", 'rpm2cpio "$1" | cpio -id --quiet', "sh", srpm, cwd=tmp_path)
    (line,) = [t.split() for t in (REPO / "sources.lock").read_text().splitlines() if t.startswith("e2fsprogs ")]
    assert hashlib.sha256((tmp_path / line[3]).read_bytes()).hexdigest() == line[2]
    series = [t.strip() for t in (REPO / "e2fsprogs" / "patches" / "series").read_text().splitlines()]
    want = [t for t in series if t and not t.startswith("#")]
    assert re.findall(r"^Patch\d+:\s+(\S+)$", (tmp_path / "e2fsprogs-itree.spec").read_text(), re.M) == want


def test_backup_has_the_files_of_any_host(old):
    """Those of the .deb: nothing that takes and formats disks; each unit is stopped when the package goes."""
    (path,) = (old / "RPMS").glob("itree-backup-*.rpm")
    held = {p[1:] for p in roots.call("rpm", "-qpl", path)[1].split()}
    wanted = set(backup.files())
    assert {re.sub(r"(/man[58]/.*)\.gz$", r"\1", p) for p in held} >= wanted
    assert not [p for p in held if re.search("volume|repart|udev|grow", p)]
    scripts = roots.call("rpm", "-qp", "--scripts", path)[1]
    stopped = re.search(r"remove-system-units (.*) \|\|", scripts)[1].split()
    assert stopped == sorted(p.rsplit("/", 1)[1] for p in wanted if p.startswith("usr/lib/systemd/system/"))


def test_scriptlets_touch_no_file_system(old):
    output = roots.call("rpm", "-qp", "--scripts", "--triggers", *sorted((old / "RPMS").glob("*.rpm")))[1]
    assert "no file system has been changed" in output
    assert not re.search(r"mke2fs|tune2fs|e2fsck|mount|grub", output), output


@pytest.fixture
def elsewhere():
    """A directory that an ordinary user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="itree-rebuild-") as path:
        os.chmod(path, 0o755)
        yield pathlib.Path(path)


def name_of(path):
    return roots.call("rpm", "-qp", "--qf", "%{NAME}", path)[1]


def source_of(path):
    """The name of the source package of an RPM."""
    return roots.call("rpm", "-qp", "--qf", "%{SOURCERPM}", path)[1].rsplit("-", 2)[0]


def again(directory):
    """Source packages whose second build is paid for."""
    return [p for p in sorted(directory.glob("*.src.rpm")) if name_of(p) in AGAIN]


def test_the_same_bytes_by_another_user_elsewhere(old, elsewhere):
    """An ordinary user rebuilds the SRPMs in another place, without compiler cache: identical payloads.

    All but the kernel's, which has a test of its own, and the patched tools', unless ITREE_FULL=1.
    """
    top = elsewhere
    (top / "tmp").mkdir()
    user = ()
    if os.geteuid() == 0:
        os.chown(top, NOBODY, NOBODY)
        os.chown(top / "tmp", NOBODY, NOBODY)
        user = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
    for srpm in again(old / "SRPMS"):
        copy = top / "tmp" / srpm.name
        shutil.copy(srpm, copy)
        copy.chmod(0o644)
        roots.call(*user, "env", f"HOME={top}", f"TMPDIR={top}/tmp", "rpmbuild", "--rebuild", "--nodeps",
                   "--define", f"_topdir {top}/build", copy, cwd=top)  # fmt: skip
    rebuilt = {p.name: p for p in (top / "build" / "RPMS").rglob("*.rpm")}
    built = [name_of(p) for p in again(old / "SRPMS")]
    assert built == sorted(AGAIN)
    assert sorted(rebuilt) == [n for n in names(old / "RPMS") if source_of(old / "RPMS" / n) in built]
    query = ("rpm", "-qp", "--qf", "%{PAYLOADDIGEST} %{BUILDTIME} %{BUILDHOST}\\n")
    for name, path in rebuilt.items():
        one, two = roots.call(*query, old / "RPMS" / name)[1], roots.call(*query, path)[1]
        assert len(one.split()[0]) == 64 and one == two, name
