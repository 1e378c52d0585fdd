# SPDX-License-Identifier: GPL-2.0-only
"""Wrong arguments stop a role before it touches anything."""

import pytest

VOLUME = {"device": "/dev/itree-test", "mount": "/srv"}
GOOD = {
    "repo": {"itree_repo_url": "https://repo.invalid/itree", "itree_repo_key": "KEY"},
    "packages": {},
    "kernel": {},
    "feature": {"itree_feature_volumes": [VOLUME], "itree_feature_backup_confirmed": True},
    "convert": {"itree_convert_paths": ["/srv"]},
    "check": {"itree_check_paths": ["/srv"]},
    "gate": {"itree_gate_services": ["dovecot"]},
    "rollback": {"itree_rollback_volumes": [VOLUME], "itree_rollback_backup_confirmed": True},
    "appliance": {"itree_appliance_server": "backup1", "itree_appliance_paths": ["/srv"]},
    "backup": {"itree_backup_settings": {"notify": {"mail_to": "root"}}},
}
# role, what is different from GOOD (None: left out), what the message names
BAD = (
    ("repo", {"itree_repo_url": None}, "itree_repo_url"),
    ("repo", {"itree_repo_url": "gopher://repo.invalid"}, "must be a https, http or file URL"),
    ("repo", {"itree_repo_manager": "zypper"}, "value of itree_repo_manager must be one of"),
    ("repo", {"itree_repo_key": "/etc/hostname"}, "an armoured public key"),
    ("packages", {"itree_packages_update": "perhaps"}, "itree_packages_update"),
    ("packages", {"itree_packages_apt": []}, "must not be empty"),
    ("kernel", {"itree_kernel_required": "perhaps"}, "itree_kernel_required"),
    ("kernel", {"itree_kernel_reboot": "perhaps"}, "itree_kernel_reboot"),
    ("kernel", {"itree_kernel_signed": "perhaps"}, "itree_kernel_signed"),
    ("kernel", {"itree_kernel_apt": []}, "must not be empty"),
    ("kernel", {"itree_kernel_loader": "lilo"}, "value of itree_kernel_loader must be one of"),
    ("kernel", {"itree_kernel_guard": 600, "itree_kernel_timeout": 600}, "longer than itree_kernel_guard"),
    ("feature", {"itree_feature_volumes": None}, "itree_feature_volumes"),
    ("feature", {"itree_feature_volumes": [{"mount": "/srv"}]}, "device"),
    ("feature", {"itree_feature_volumes": [VOLUME, VOLUME]}, "name each device once"),
    ("feature", {"itree_feature_volumes": [{"device": "sda1"}]}, "absolute"),
    ("feature", {"itree_feature_volumes": [{**VOLUME, "mount": "/"}]}, 'never "/"'),
    ("feature", {"itree_feature_volumes": [{**VOLUME, "mountpoint": "/srv"}]}, "mountpoint"),
    ("feature", {"itree_feature_volumes": [{**VOLUME, "services": ["dovecot"]}]}, "services without"),
    ("feature", {"itree_feature_volumes": [{"device": "/dev/x"}], "itree_feature_unmount": True}, "needs its mount"),
    ("feature", {"itree_feature_backup_confirmed": None}, "itree_feature_backup_confirmed: true"),
    ("convert", {"itree_convert_paths": None}, "itree_convert_paths"),
    ("convert", {"itree_convert_paths": []}, "at least one path"),
    ("convert", {"itree_convert_paths": ["srv"]}, "absolute"),
    ("convert", {"itree_convert_batch": 0}, "positive"),
    ("convert", {"itree_convert_batch": "many"}, "itree_convert_batch"),
    ("convert", {"itree_convert_min_free_percent": 100}, "from 0 to 99"),
    ("check", {"itree_check_paths": []}, "at least one absolute path"),
    ("check", {"itree_check_paths": ["/srv\nExecStart=/bin/sh"]}, "without control characters"),
    ("check", {"itree_check_on_failure": "mail root"}, "name of a service or target"),
    ("check", {"itree_check_calendar": "daily\nOnBootSec=1"}, "a line each"),
    ("gate", {"itree_gate_services": []}, "A gate that asks nothing"),
    ("gate", {"itree_gate_kernel": "perhaps"}, "value of itree_gate_kernel must be one of"),
    ("gate", {"itree_gate_ports": [0]}, "from 1 to 65535"),
    ("gate", {"itree_gate_commands": ["true"]}, "itree_gate_commands"),
    ("gate", {"itree_gate_commands": [[]]}, "lists of words"),
    ("rollback", {"itree_rollback_volumes": None}, "itree_rollback_volumes"),
    ("rollback", {"itree_rollback_volumes": [VOLUME, VOLUME]}, "name each device once"),
    ("rollback", {"itree_rollback_volumes": [{"device": "/dev/x"}], "itree_rollback_unmount": True}, "needs its mount"),
    ("rollback", {"itree_rollback_backup_confirmed": None}, "itree_rollback_backup_confirmed: true"),
    ("appliance", {"itree_appliance_server": None}, "itree_appliance_server"),
    ("appliance", {"itree_appliance_paths": []}, "at least one absolute path"),
    ("appliance", {"itree_appliance_paths": ["/srv\n[keep]"]}, "without control characters"),
    ("appliance", {"itree_appliance_client": "../root"}, "plain names"),
    ("appliance", {"itree_appliance_address": "-oProxyCommand=sh"}, "plain names"),
    ("appliance", {"itree_appliance_command": 'rrsync -ro /" ssh-rsa'}, "no quotes"),
    ("appliance", {"itree_appliance_from": ['10.0.0.1",command="sh']}, "addresses or patterns"),
    ("appliance", {"itree_appliance_keep": {"daly": 1}}, "daly"),
    ("backup", {"itree_backup_directory": "/"}, "absolute path and not"),
    ("backup", {"itree_backup_directory": "srv"}, "absolute path and not"),
    ("backup", {"itree_backup_settings": {"notify": "root"}}, "sections, each with its settings"),
    ("backup", {"itree_backup_settings": {"keep": {"daily": "7\n[notify]"}}}, "line break"),
    ("backup", {"itree_backup_page_password": "a\nb"}, "line break"),
    ("backup", {"itree_backup_timers": "perhaps"}, "itree_backup_timers"),
)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key.asc"
    path.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    return str(path)


def host(role, different, key):
    values = {**GOOD[role], **different}
    values = {k: key if v == "KEY" else v for k, v in values.items() if v is not None}
    return {"role": f"itree.storage.{role}", **values}


def play(collection, hosts, entry):
    """Each host has one role and arguments of its own: many cases in one run."""
    tasks = [{"ansible.builtin.include_role": {"name": "{{ role }}", "tasks_from": entry}}]
    return collection.play([{"hosts": "all", "gather_facts": False, "tasks": tasks}], hosts, "-f", "2")


def test_bad(collection, key):
    hosts = {f"bad{n}": host(role, different, key) for n, (role, different, _words) in enumerate(BAD)}
    played = play(collection, hosts, "main").bad()
    flat = " ".join(played.text.split())
    for n, (role, different, words) in enumerate(BAD):
        found = played.hosts[f"bad{n}"]
        assert found["failed"] == 1 and found["changed"] == 0, (role, different)
        # The inclusion, the specification and an assertion, of which some have two: nothing of the role's own work.
        assert found["ok"] <= 2 + (role in ("feature", "appliance")), (role, different, found)
        messages = [part for part in flat.split("fatal: ")[1:] if part.startswith(f"[bad{n}]:")]
        assert len(messages) == 1 and words in messages[0].replace('\\"', '"'), (role, different, messages)


def test_good(collection, key):
    """What the table above changes is right without the change; asked the way the playbooks do."""
    play(collection, {role: host(role, {}, key) for role in GOOD}, "arguments").good()
