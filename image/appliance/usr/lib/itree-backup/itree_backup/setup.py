# SPDX-License-Identifier: GPL-2.0-only
"""First boot, and every other: what credentials bring becomes configuration.

They come from systemd (SMBIOS, kernel command line, container manager) or lie
in itree-backup/ of the EFI system partition.

    itree-backup.conf            itree-backup.conf
    itree-backup.ssh-key         ssh/id
    itree-backup.known-hosts     ssh/known_hosts
    itree-backup.host.NAME       hosts.d/NAME.conf
    ssh.authorized_keys.root     /root/.ssh/authorized_keys, from the EFI system partition

What a credential brings replaces the file of that name; other files stay.
"""

import os
import pathlib
import re
import shutil
import subprocess

from . import config
from .errors import BackupError
from .store import write_file

DEFAULTS = pathlib.Path(__file__).resolve().parents[1] / "itree-backup.conf"
WANTS = pathlib.Path("/etc/systemd/system/timers.target.wants")
PREFIX = "itree-backup."
SYSTEM = pathlib.Path("/run/credentials/@system")
ESP = pathlib.Path("/efi/itree-backup")
ROOT_KEYS = "ssh.authorized_keys.root"


def defaults(conf):
    """Make the configuration directory, with a configuration that says what it is about."""
    for path in (conf, conf / "hosts.d", conf / "ssh"):
        path.mkdir(mode=0o700, exist_ok=True)
    if not (conf / "itree-backup.conf").exists():
        shutil.copy(DEFAULTS, conf / "itree-backup.conf")


def target(conf, name):
    """Where a credential goes; None if it is not one of ours."""
    if name == "itree-backup.conf":
        return conf / name
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX)
    if rest.startswith("host."):
        return conf / "hosts.d" / f"{config.check_name(rest.removeprefix('host.'))}.conf"
    return {"ssh-key": conf / "ssh" / "id", "known-hosts": conf / "ssh" / "known_hosts"}.get(rest)


def sources():
    """Directories of credentials, the one that has the last word last."""
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    return [p for p in ([pathlib.Path(given)] if given else [ESP, SYSTEM]) if p.is_dir()]


def setup(conf):
    """Install credentials, make a key if there is none, and say the public half of it."""
    defaults(conf)
    for path in [p for d in sources() for p in sorted(d.iterdir())]:
        where = target(conf, path.name)
        if path.name == ROOT_KEYS and path.parent == ESP:
            # Those of the other source systemd-tmpfiles puts in place.
            where = pathlib.Path("/root/.ssh/authorized_keys")
            where.parent.mkdir(mode=0o700, exist_ok=True)
        if path.name == "README.txt":
            continue
        if where is None:
            print(f"credential {path.name}: not one of ours, left alone")
            continue
        text = path.read_text()
        # ssh does not read a key whose last line has no end.
        write_file(where, text if text.endswith("\n") else text + "\n")
        where.chmod(0o600)
        print(f"credential {path.name}: {where}")
    key = conf / "ssh" / "id"
    if not key.exists():
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"itree-backup@{os.uname().nodename}", "-f", key)
    public = call("ssh-keygen", "-y", "-f", key).strip()
    write_file(conf / "ssh" / "id.pub", public + "\n")
    print(f'for authorized_keys of the clients:\nrestrict,command="rrsync -ro /" {public}')
    known = conf / "ssh" / "known_hosts"
    if not known.exists():
        write_file(known, "# Keys of the clients, as ssh-keyscan prints them once you have compared them.\n")


def call(*argv):
    res = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if res.returncode:
        raise BackupError(f"{' '.join(map(str, argv))} ended with {res.returncode}: {res.stderr.strip()}")
    return res.stdout


def timers(names):
    """Switch the timers of these hosts on and those of all others off."""
    there = WANTS.glob("backup@*.timer") if WANTS.is_dir() else ()
    old = {m[1] for m in (re.fullmatch(r"backup@(.+)\.timer", p.name) for p in there) if m}
    for name in sorted(old - set(names)):
        call("systemctl", "disable", "--now", f"backup@{name}.timer")
    for name in sorted(set(names) - old):
        # Not waited for: this runs while the machine boots.
        call("systemctl", "enable", "--now", "--no-block", f"backup@{name}.timer")
