# SPDX-License-Identifier: GPL-2.0-only
"""The roles repo, packages and check on this host itself, its /etc, /usr and /var covered by what goes away again."""

import os
import pathlib
import shutil

import pytest
import repositories
from conftest import full, run


def once_twice(collection, sandbox, role, wanted, **variables):
    """Check mode changes nothing and foretells it; then it is done; then there is nothing left to do."""
    before = sandbox.changes()
    foretold = collection.role(role, "--check", "--diff", before=sandbox.before, **variables).good()
    assert sandbox.changes() == before, "check mode has changed the host"
    done = collection.role(role, "--diff", before=sandbox.before, **variables).good()
    after = sandbox.changes()
    assert set(after) ^ set(before) == set(wanted)
    assert foretold.changed()["here"] > 0 and done.changed()["here"] > 0
    again = collection.role(role, "--diff", before=sandbox.before, **variables).good()
    assert again.changed() == {"here": 0}
    assert sandbox.changes() == after
    return done


@pytest.fixture
def quiet(sandbox):
    """Apt of the sandbox knows no repository: the host's mirrors are not asked."""
    sandbox.run("sh", "-c", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*")
    # The repositories lie where only root can look.
    # What apt recommends is installed unless somebody says otherwise, which images of containers do.
    sandbox.put("/etc/apt/apt.conf.d/99test", 'APT::Sandbox::User "root";\nAPT::Install-Recommends "true";\n')
    return sandbox


APT_FILES = ("/etc/apt/keyrings/itree.asc", "/etc/apt/sources.list.d/itree.sources")


def test_apt(collection, quiet, tmp_path):
    """Repository there, package from it, repository gone."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    repo, key = repositories.apt(tmp_path / "repo", recommended="itree-probe-kernel")
    variables = {"itree_repo_url": f"file://{repo}", "itree_repo_key": str(key)}
    once_twice(collection, quiet, "repo", APT_FILES, **variables)
    assert "Candidate: 1" in quiet.run("apt-cache", "policy", repositories.NAME)
    # The package is not what it should be: it has no e4itree, and the role does not take apt's word for it.
    packages = {"itree_packages_apt": [repositories.NAME]}
    # It recommends another, as itree-storage-server does a kernel; that is not to come by way of this role.
    assert "itree-probe-kernel" in quiet.run("apt-get", "-sqy", "install", repositories.NAME)
    foretold = collection.role("packages", "--check", before=quiet.before, **packages).good()
    assert foretold.changed()["here"] == 1
    assert quiet.run("dpkg-query", "-W", repositories.NAME, ok=(1,))
    played = collection.role("packages", before=quiet.before, **packages)
    played.bad("they are the distribution's", "itree.storage.repo")
    assert quiet.run("cat", f"/{repositories.FILE}") == "there\n"
    assert "Installed: (none)" in quiet.run("apt-cache", "policy", "itree-probe-kernel")
    gone = collection.role("repo", before=quiet.before, itree_repo_state="absent", **variables).good()
    assert gone.changed()["here"] == 1
    assert not [p for p in quiet.changes() if p in APT_FILES]
    # A repository that the key has not signed is not left behind.
    variables["itree_repo_key"] = str(repositories.stranger(tmp_path / "stranger"))
    collection.role("repo", before=quiet.before, **variables).bad("was not added", variables["itree_repo_key"])
    assert APT_FILES[1] not in quiet.changes()


def test_dnf(collection, sandbox, tmp_path):
    """Debian has dnf too; what the role writes is what dnf reads."""
    if not shutil.which("dnf"):
        pytest.skip("no dnf on this host")
    repo, key = repositories.dnf(tmp_path / "repo")
    sandbox.run("mkdir", "-p", "/etc/pki/rpm-gpg", "/etc/yum.repos.d")
    variables = {"itree_repo_url": f"file://{repo}", "itree_repo_key": str(key), "itree_repo_manager": "dnf"}
    collection.role("repo", before=sandbox.before, **variables).good()
    assert collection.role("repo", before=sandbox.before, **variables).good().changed() == {"here": 0}
    found = sandbox.run("dnf", "-q", "--disablerepo=*", "--enablerepo=itree", "repoquery", repositories.NAME)
    assert f"{repositories.NAME}-0:1-1.noarch" in found
    variables["itree_repo_key"] = str(repositories.stranger(tmp_path / "stranger"))
    sandbox.run("sh", "-c", "rm -rf /var/cache/dnf /etc/yum.repos.d/itree.repo")
    collection.role("repo", before=sandbox.before, **variables).bad("was not added")
    assert "/etc/yum.repos.d/itree.repo" not in sandbox.changes()


def test_gate_kernel(collection, sandbox):
    """The gate prints an update of the running kernel that was not booted, or fails; it ignores other flavours."""
    release = os.uname().release
    sandbox.put(f"/usr/lib/modules/999.{release}-rt/vmlinuz", "")
    fail = {"itree_gate_kernel": "fail"}
    collection.role("gate", before=sandbox.before, **fail).good()
    sandbox.put(f"/usr/lib/modules/999.{release}/vmlinuz", "")
    words = f"here runs {release}, and 999.{release} is installed: reboot to get its fixes"
    collection.role("gate", before=sandbox.before, **fail).bad(words)
    output = collection.role("gate", before=sandbox.before, itree_gate_commands=[["true"]]).good()
    assert words in " ".join(output.text.split()) and output.changed() == {"here": 0}


UNITS = ("/etc/systemd/system/itree-check.service", "/etc/systemd/system/itree-check.timer")


def test_check(collection, sandbox, tools):
    """Units that systemd takes, also with paths that mean something to it."""
    sandbox.put("/usr/sbin/e4itree", (tools / "e4itree").read_bytes(), 0o755)
    paths = ["/srv/mail", '/srv/100% of "it"', "/srv/$HOME dir", "/srv/back\\slash"]
    variables = {"itree_check_paths": paths, "itree_check_on_failure": "itree-tell@%n.service".replace("%n", "root"),
                 "itree_check_start": False}  # fmt: skip
    once_twice(collection, sandbox, "check", UNITS, **variables)
    output = sandbox.run("systemd-analyze", "verify", "--man=no", *UNITS)
    # The unit named by the admin does not exist here, which is no error; anything else would be told.
    assert not [t for t in output.splitlines() if "itree-check" in t and "itree-tell" not in t], output
    service = pathlib.Path(f"{sandbox.top}/etc.up/systemd/system/itree-check.service").read_text()
    assert service.count("OnFailure=itree-tell@root.service") == 1
    # Words as systemd.service(5) has them.
    words = r'check --recursive --quiet -- "/srv/mail" "/srv/100%% of \"it\"" "/srv/$$HOME dir" "/srv/back\\slash"'
    assert words in service
    gone = collection.role("check", before=sandbox.before, itree_check_state="absent", **variables).good()
    assert gone.changed()["here"] > 0
    assert not [u for u in UNITS if u in sandbox.changes()]


def test_timers_of_pack_and_arrange(collection, sandbox, tools):
    """Off unless they are asked for; what they may write are the paths; gone when they are no longer wanted."""
    sandbox.put("/usr/sbin/e4itree", (tools / "e4itree").read_bytes(), 0o755)
    more = tuple(f"/etc/systemd/system/itree-{x}.{kind}" for x in ("pack", "arrange") for kind in ("service", "timer"))
    variables = {"itree_check_paths": ["/srv/mail", '/srv/100% of "it"'], "itree_check_start": False,
                 "itree_check_pack": True, "itree_check_arrange": True}  # fmt: skip
    once_twice(collection, sandbox, "check", UNITS + more, **variables)
    output = sandbox.run("systemd-analyze", "verify", "--man=no", *UNITS, *more)
    assert not [t for t in output.splitlines() if "itree-" in t], output
    for name, needs in (("pack", True), ("arrange", False)):
        service = pathlib.Path(f"{sandbox.top}/etc.up/systemd/system/itree-{name}.service").read_text()
        assert f'/usr/sbin/e4itree {name} --recursive --quiet -- "/srv/mail"' in service
        assert r'ReadWritePaths="/srv/mail" "/srv/100%% of \"it\""' in service
        assert ("ConditionPathExists=" in service) is needs
    assert "ReadWritePaths" not in pathlib.Path(f"{sandbox.top}/etc.up/systemd/system/itree-check.service").read_text()
    variables["itree_check_pack"] = False
    collection.role("check", before=sandbox.before, **variables).good()
    assert [u for u in more if u in sandbox.changes()] == list(more[2:])
    collection.role("check", before=sandbox.before, itree_check_state="absent", **variables).good()
    assert not [u for u in UNITS + more if u in sandbox.changes()]


def test_check_bad_calendar(collection, sandbox, tools):
    """systemd itself is asked whether it understands the time."""
    sandbox.put("/usr/sbin/e4itree", (tools / "e4itree").read_bytes(), 0o755)
    before = sandbox.changes()
    variables = {"itree_check_paths": ["/srv"], "itree_check_start": False, "itree_check_calendar": "every full moon"}
    played = collection.role("check", before=sandbox.before, **variables)
    played.bad("every full moon", "systemd-analyze calendar")
    assert sandbox.changes() == before


@full
def test_packages_have_e4itree_already(collection, sandbox, tools):
    """A host that has it keeps the versions of its packages."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt on this host")
    sandbox.put("/usr/sbin/e4itree", (tools / "e4itree").read_bytes(), 0o755)
    before = sandbox.changes()
    packages = {"itree_packages_apt": ["e2fsprogs"]}
    assert collection.role("packages", before=sandbox.before, **packages).good().changed() == {"here": 0}
    assert sandbox.changes() == before


def test_kernel(collection):
    played = collection.role("kernel", itree_kernel_required=False).good()
    if os.path.exists("/sys/fs/ext4/features/itree"):
        pytest.skip("this host's kernel knows itrees")
    assert "does not know itrees" in " ".join(played.text.split())
    collection.role("kernel").bad(f"the running kernel ({os.uname().release}) does not know itrees")
    assert run("uname", "-r")[1].strip() in played.text
