# SPDX-License-Identifier: GPL-2.0-only
"""Set-up at the first boot and every other: credentials become configuration.

They come from systemd (SMBIOS, kernel command line, container manager) or lie
in itree-backup/ of the EFI system partition.

    itree-backup.conf            itree-backup.conf
    itree-backup.ssh-key         ssh/id
    itree-backup.known-hosts     ssh/known_hosts
    itree-backup.host.NAME       hosts.d/NAME.conf
    itree-backup.page-password   page/password, as a hash
    ssh.authorized_keys.root     /root/.ssh/authorized_keys, from the EFI system partition

A credential replaces the file of its name; other files stay. The first set-up
takes what is still missing from the backup volume.
"""

import codecs
import os
import pathlib
import re
import subprocess

from . import config, configcopy
from .errors import USAGE, BackupError
from .store import MARKER, TROUBLE, state_directory, write_file

DEFAULTS = pathlib.Path(__file__).resolve().parents[1] / "itree-backup.conf"
WANTS = pathlib.Path("/etc/systemd/system/timers.target.wants")
ALWAYS = ("backup-watch.timer", "backup-notify.timer", "backup-verify.timer")
PREFIX = "itree-backup."
SYSTEM = pathlib.Path("/run/credentials/@system")
ESP = pathlib.Path("/efi/itree-backup")
ROOT_HOME = pathlib.Path("/root")
ROOT_KEYS = "ssh.authorized_keys.root"
PROBLEMS = "setup-problems"
FIRST = "first-setup"
PAGE_CREDENTIAL = "itree-backup.page-password"


def defaults(conf):
    """Make the configuration directory, with a configuration file that shows the defaults."""
    for path in (conf, conf / "hosts.d", conf / "ssh"):
        path.mkdir(mode=0o700, exist_ok=True)
    if not (conf / "itree-backup.conf").exists():
        write_file(conf / "itree-backup.conf", DEFAULTS.read_text())


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
    """Directories of credentials; a later one overrides those before it."""
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    return [p for p in ([pathlib.Path(given)] if given else [ESP, SYSTEM]) if p.is_dir()]


def text_of(path):
    """The text of a file that may come from another kind of system: UTF-8 unless a byte order mark says otherwise."""
    data = path.read_bytes()
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    coding = next((c for mark, c in marks.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(coding).replace("\r\n", "\n")
    except UnicodeDecodeError as err:
        raise BackupError(f"it is not {coding.upper()} text (byte {err.start}): save it as UTF-8", USAGE) from err
    # ssh rejects a key without a newline at its end.
    return text if text.endswith("\n") else text + "\n"


def install(conf, path):
    """Install one credential. Raises BackupError or OSError, which does not affect the others."""
    if path.name == ROOT_KEYS and path.parent == ESP:
        # systemd-tmpfiles installs those of the other source.
        where = ROOT_HOME / ".ssh" / "authorized_keys"
        where.parent.mkdir(mode=0o700, exist_ok=True)
    elif path.name == PAGE_CREDENTIAL:
        page_module().set_password(conf, text_of(path).rstrip("\n"))
        print(f"credential {path.name}: the status page has this password")
        return
    else:
        where = target(conf, path.name)
    if where is None:
        if path.parent == ESP:
            raise BackupError("no setting has this name; a system that hides the ends of names may have "
                              "appended .txt", USAGE)  # fmt: skip
        print(f"credential {path.name}: not one of ours, left alone")
        return
    write_file(where, text_of(path))
    where.chmod(0o600)
    print(f"credential {path.name}: {where}")


def setup(conf):
    """Install credentials, make a key if there is none, and print the public half of it.

    Returns a line for each problem: one bad file does not keep the others from taking effect.
    """
    wrong = []
    defaults(conf)
    found = [p for d in sources() for p in sorted(d.iterdir()) if p.name != "README.txt"]
    # Root's keys come first, so that the admin can log in whatever is wrong with the rest.
    for path in sorted(found, key=lambda p: p.name != ROOT_KEYS):
        try:
            install(conf, path)
        except (BackupError, OSError) as err:
            wrong.append(f"{path}: {err}")
    try:
        take_over(conf)
    except (BackupError, OSError) as err:
        wrong.append(f"the configuration that the backup volume holds: {err}")
    try:
        if (conf / config.PAGE_PASSWORD).exists():
            make_certificate(conf)
        make_key(conf)
        public = public_half(conf)
        write_file(conf / "ssh" / "id.pub", public + "\n")
        print(f"for authorized_keys of the clients:\n{authorized(public)}")
    except (BackupError, OSError) as err:
        wrong.append(str(err))
    known = conf / "ssh" / "known_hosts"
    if not known.exists():
        write_file(known, "# Keys of the clients, as ssh-keyscan prints them once you have compared them.\n")
    return wrong


def take_over(conf):
    """At the first set-up that finds the backup volume, take from it what the configuration lacks.

    Raises BackupError or OSError. If the volume is mounted only after the first set-up, a later one does this.
    """
    marker = conf / FIRST
    if not (conf / "ssh" / "id").exists():
        write_file(marker, "No backup volume has been looked at for a copy of the configuration yet.\n")
    base = config.settings(conf)
    if not marker.exists() or not (base.volume / MARKER).exists():
        return
    taken = configcopy.take_over(base, DEFAULTS.read_bytes())
    if taken:
        print(f"taken over from the backup volume: {', '.join(taken)}")
    marker.unlink()


def make_key(conf, name="id"):
    """Make a private key in ssh/ unless there is one; returns its path. Raises BackupError or OSError."""
    key = conf / "ssh" / name
    # A power cut can leave a file without its contents.
    if not key.exists() or not key.read_bytes().strip(b"\0"):
        fresh = conf / "ssh" / f".{name}.made"
        made = (fresh, fresh.with_name(f"{fresh.name}.pub"))
        for path in made:
            path.unlink(missing_ok=True)
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"itree-backup@{os.uname().nodename}", "-f", fresh)
        write_file(key, fresh.read_text())
        key.chmod(0o600)
        for path in made:
            path.unlink()
    return key


def public_half(conf, name="id"):
    """The public half of a key in ssh/. Raises BackupError."""
    return call("ssh-keygen", "-y", "-f", conf / "ssh" / name).strip()


def authorized(public, may="-ro"):
    """The line for authorized_keys that lets a key run rsync and nothing else. may: -ro to read, -wo to write."""
    return f'restrict,command="rrsync {may} /" {public}'


def page_module():
    """The module of the status page. Raises BackupError if its dependencies are not installed."""
    try:
        from . import page  # noqa: PLC0415
    except ImportError as err:
        raise BackupError(f"the status page cannot run: {err}. Install python3-flask, python3-flask-httpauth and "
                          "gunicorn", USAGE) from err  # fmt: skip
    return page


def make_certificate(conf):
    """Make key and certificate of the status page, unless they are there. Raises BackupError or OSError."""
    page = conf / "page"
    key, cert = page / "key.pem", page / "cert.pem"
    page.mkdir(mode=0o700, exist_ok=True)
    # A power cut can leave a file without its contents.
    if all(path.exists() and path.read_text().startswith("-----BEGIN") for path in (key, cert)):
        return
    name = os.uname().nodename
    made = [path.with_name(f".{path.name}.made") for path in (key, cert)]
    call("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "3650", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
         "-keyout", made[0], "-out", made[1])  # fmt: skip
    for fresh, path in zip(made, (key, cert), strict=True):
        write_file(path, fresh.read_text())
        fresh.unlink()


def start_page():
    """Have systemd listen for the status page, and restart one that knows the old password."""
    call("systemctl", "start", "itree-backup-page.socket")
    call("systemctl", "try-restart", "itree-backup-page.service")


def note_problems(conf, wrong):
    """Keep the problems for status to show, until a set-up has none."""
    path = conf / PROBLEMS
    if wrong:
        write_file(path, "".join(f"{line}\n" for line in wrong))
    else:
        path.unlink(missing_ok=True)


def problems(conf):
    """Problems of the last set-up and of the machine (disks, version), as lines."""
    found = (conf / PROBLEMS, *sorted(state_directory().glob(TROUBLE)))
    return [line for path in found if path.exists() for line in path.read_text().splitlines()]


def call(*argv):
    res = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if res.returncode:
        raise BackupError(f"{' '.join(map(str, argv))} ended with {res.returncode}: {res.stderr.strip()}")
    return res.stdout


def timers(names):
    """Enable the timers of these hosts and those that all need; disable those of all other hosts."""
    there = WANTS.glob("backup@*.timer") if WANTS.is_dir() else ()
    old = {m[1] for m in (re.fullmatch(r"backup@(.+)\.timer", p.name) for p in there) if m}
    for name in sorted(old - set(names)):
        call("systemctl", "disable", "--now", f"backup@{name}.timer")
    # In the image, its preset has enabled them.
    for unit in (unit for unit in ALWAYS if not (WANTS / unit).exists()):
        call("systemctl", "enable", "--now", "--no-block", unit)
    for name in sorted(set(names) - old):
        # --no-block: this runs while the machine boots.
        call("systemctl", "enable", "--now", "--no-block", f"backup@{name}.timer")
