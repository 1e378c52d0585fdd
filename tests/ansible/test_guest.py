# SPDX-License-Identifier: GPL-2.0-only
"""In the virtual machine, against the kernel that has itrees."""

import json
import os

import pytest
import stock
import vm
from conftest import REPO, VENV, fill, run

NAMES = 1500


@pytest.fixture
def volume(image, tools, tmp_path):
    """A large directory from before the feature."""
    made = image()
    fill(made.mount(tmp_path / "mnt") / "large", NAMES)
    made.umount()
    return made


def paths(collection):
    site = next((REPO / "build" / "venv" / "lib").glob("python3*")) / "site-packages"
    return f"{collection.top}:{site}"


@pytest.mark.parametrize("kind", ["ext4", "ext4itree"])
def test_modules(collection, tools, volume, kind):
    """On our kernel, and on the distribution's with the module beside its ext4."""
    kernel = vm.DEFAULT_KERNEL if kind == "ext4" else stock.with_module().image
    script = REPO / "tests" / "ansible" / "guest.py"
    command = [str(w) for w in (VENV / "python", script, collection.top, tools, NAMES, kind)]
    env = {"PYTHONPATH": paths(collection), "PYTHONDONTWRITEBYTECODE": "1"}
    res = vm.run(command, kernel=kernel, disks=[volume.path], memory="512M", timeout=600, env=env)
    assert res.ok and res.stdout.rstrip().endswith("done"), f"{res.explain()}\n{res.stdout}"
    run(tools / "e2fsck", "-fn", volume.path)


@pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="with ITREE_FULL=1: Ansible itself is slow in the machine")
@pytest.mark.parametrize("kind", ["ext4", "ext4itree"])
def test_roll_out(collection, tools, volume, kind):
    """The playbook for NFS hosts in the machine: feature, trees; the second time there is nothing left to do.

    With the module fstab gets its type, and the distribution's when the feature is taken off.
    """
    kernel = vm.DEFAULT_KERNEL if kind == "ext4" else stock.with_module().image
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(VENV / "python"),
        "itree_nfs_roles": ["kernel", "feature", "convert"],
        "itree_kernel_variant": "kernel" if kind == "ext4" else "module",
        "itree_nfs_services": [],
        "itree_nfs_ports": [],
        "itree_gate_volumes": ["/mnt"],
        "itree_feature_volumes": [{"device": "/dev/vda", "mount": "/mnt"}],
        "itree_feature_unmount": True,
        "itree_feature_backup_confirmed": True,
        "itree_feature_tools": str(tools),
        "itree_convert_paths": ["/mnt"],
        "itree_convert_e4itree": str(tools / "e4itree"),
        "itree_convert_max_load": 1000.0,
    }
    play = f"{VENV}/ansible-playbook -i /tmp/hosts.json itree.storage.nfs_hosts"
    script = f"""
        set -e
        cat >/tmp/hosts.json <<'END'
{json.dumps({"nfs": {"hosts": {"guest": variables}}})}
END
        echo '/dev/vda /mnt ext4 defaults,nofail 0 0' >/etc/fstab
        mount /mnt
        mounted() {{ grep -q "^/dev/vda /mnt $1 " /etc/fstab && test "$(findmnt -no FSTYPE /mnt)" = "$1"; }}
        {play} --check
        {play} | tee /tmp/first
        grep -q 'changed=[1-9]' /tmp/first
        {play} | tee /tmp/second
        grep -q 'changed=0' /tmp/second
        {tools}/e4itree check /mnt/large
        mounted {kind}
        {play} -e '{{"itree_nfs_roles": ["feature"], "itree_feature_state": "absent"}}'
        mounted ext4
        umount /mnt
    """
    env = {**collection.env, "ANSIBLE_HOME": "/tmp/ansible", "ANSIBLE_REMOTE_TMP": "/tmp/ansible/remote"}
    res = vm.run(["bash", "-c", script], kernel=kernel, disks=[volume.path], memory="1G", timeout=1800, env=env)
    assert res.ok and f"{NAMES} keys" in res.stdout, f"{res.explain()}\n{res.stdout}"
    run(tools / "e2fsck", "-fn", volume.path)
