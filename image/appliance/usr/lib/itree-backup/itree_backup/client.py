# SPDX-License-Identifier: GPL-2.0-only
"""Adding a client and retiring it: its host key, a trial connection, its file in hosts.d, its timer.

The host's file is written last, after the client has listed every path: every
configured host has been readable once.
"""

import dataclasses
import re
import subprocess
import sys

from . import config, setup, transfer
from .errors import CLIENT, REFUSED, USAGE, BackupError
from .store import write_file

SCAN_SECONDS = 15  # ssh-keyscan waits this long for the client
TRY_SECONDS = 120  # a trial connection that takes longer has failed
RETIRED = ".retired"  # appended to the name of a retired host's file
FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
# The keys that are looked at first: a client usually has one of each kind.
KINDS = ("ed25519", "ecdsa", "rsa")


@dataclasses.dataclass
class HostKey:
    """A host key as ssh-keyscan prints it (line), and its fingerprint as ssh-keygen -l does."""

    line: str
    fingerprint: str


def address_of(host):
    """The name under which known_hosts has the keys of a host: [ADDRESS]:PORT unless the port is 22."""
    return f"[{host.address}]:{host.port}" if host.port not in (0, 22) else host.address


def scan(host):
    """Ask the client for its host keys. Returns HostKeys, ed25519 first; raises BackupError(CLIENT)."""
    argv = ["ssh-keyscan", "-T", str(SCAN_SECONDS), "-t", ",".join(KINDS), "-p", str(host.port or 22), host.address]
    res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [line for line in res.stdout.splitlines() if line and not line.startswith("#")]
    if not lines:
        reason = next((line for line in res.stderr.splitlines() if not line.startswith("#")), "it sent no host key")
        raise BackupError(
            f"{host.name} ({address_of(host)}): cannot get the host key: {reason}. Check the address and the port, "
            "and that sshd runs there",
            CLIENT,
        )
    keys = [HostKey(line, fingerprint(line)) for line in lines]
    return sorted(keys, key=lambda key: KINDS.index(kind_of(key)))


def fingerprint(line):
    """SHA256 fingerprint of a line of known_hosts. Raises BackupError(USAGE) if the line is not a key."""
    argv = ["ssh-keygen", "-l", "-f", "-"]
    res = subprocess.run(argv, input=line + "\n", capture_output=True, text=True, check=False)
    match = FINGERPRINT.search(res.stdout)
    if not match:
        raise BackupError(f"'{line[:60]}' is not a host key: {res.stderr.strip()}", USAGE)
    return match[0]


def known(base, host):
    """Fingerprints that known_hosts has for this host."""
    path = base.conf / "ssh" / "known_hosts"
    argv = ["ssh-keygen", "-F", address_of(host), "-f", path]
    res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return {fingerprint(line) for line in res.stdout.splitlines() if line and not line.startswith("#")}


def ask(question):
    """Ask on the terminal. Returns the answer, stripped; an empty one if there is no terminal or no answer."""
    if not sys.stdin.isatty():
        return ""
    try:
        return input(question).strip()
    except EOFError:
        return ""


def accept_key(base, host, expected):
    """Put a host key of the client into known_hosts once it is confirmed.

    expected: a fingerprint that the admin read on the client, or "" to ask on the terminal. Raises
    BackupError(REFUSED) if no key has it, or nobody confirms one.
    """
    keys = scan(host)
    before = known(base, host)
    if before:
        if before & {k.fingerprint for k in keys}:
            if expected and expected not in before:
                raise BackupError(
                    f"{host.name}: {base.conf}/ssh/known_hosts has {', '.join(sorted(before))} for it, not {expected}. "
                    f"If that is wrong, remove it: ssh-keygen -R '{address_of(host)}' -f {base.conf}/ssh/known_hosts",
                    REFUSED,
                )
            return
        raise BackupError(
            f"{host.name}: the client's host key has changed: known_hosts has {', '.join(sorted(before))}, and the "
            f"client sent {', '.join(k.fingerprint for k in keys)}. Either its key was replaced, or this is another "
            "machine. Ask its admin. If the key was replaced, remove the old one: "
            f"ssh-keygen -R '{address_of(host)}' -f {base.conf}/ssh/known_hosts",
            REFUSED,
        )
    if expected:
        matching = [k for k in keys if k.fingerprint == expected]
        if not matching:
            raise BackupError(
                f"{host.name}: no host key of the client has the fingerprint {expected}; it sent "
                f"{', '.join(k.fingerprint for k in keys)}. Nothing was changed",
                REFUSED,
            )
        chosen = matching[0]
    else:
        chosen = keys[0]
        print(f"{host.name} ({address_of(host)}) has this host key:\n    {chosen.fingerprint}\n"
              "Compare it on the client, at its console or over a connection that you trust:\n"
              f"    ssh-keygen -l -f /etc/ssh/ssh_host_{kind_of(chosen)}_key.pub", flush=True)  # fmt: skip
        if ask("Is it the same? [yes/no] ") != "yes":
            raise BackupError(
                f"{host.name}: the host key was not confirmed, and nothing was changed. Without a terminal give "
                "--fingerprint SHA256:..., as the client prints it",
                REFUSED,
            )
    path = base.conf / "ssh" / "known_hosts"
    old = path.read_text() if path.exists() else ""
    write_file(path, old + "\n" * bool(old and not old.endswith("\n")) + chosen.line + "\n")
    print(f"{host.name}: host key {chosen.fingerprint} accepted")


def kind_of(key):
    """Which of KINDS a HostKey is; scan() asks for no others."""
    return next((kind for kind in KINDS if kind in key.line), KINDS[0])


def authorized_line(base):
    """The line for the client's authorized_keys: reading by rsync is all it permits."""
    return setup.authorized(setup.public_half(base.conf))


def try_once(base, host):
    """Have the client list the paths themselves, not their contents. Raises BackupError."""
    # In a list they are names; as arguments they would be patterns. rsync needs a destination, but writes nothing.
    argv = ["rsync", "--list-only", "--dirs", "--links", "--from0", "--files-from=-", "--8-bit-output",
            "--no-human-readable", f"--timeout={host.timeout}", *transfer.connection(base, host), "--",
            *transfer.sources(host, True), "/nonexistent"]  # fmt: skip
    try:
        res = subprocess.run(argv, input=transfer.names_of(host), capture_output=True, timeout=TRY_SECONDS,
                             env=transfer.environ(), check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BackupError(f"{host.name} ({host.address}): no answer within {TRY_SECONDS} s", CLIENT) from None
    lines = [transfer.show(line) for line in res.stderr.splitlines() if line.strip()]
    missing = [line for line in lines if re.search(r"link_stat|change_dir", line)]
    if res.returncode == 23 and missing:
        raise BackupError(f"{host.name}: the client cannot list: {'; '.join(missing)}", USAGE)
    if res.returncode:
        raise transfer.explain(host, res.returncode, lines)
    links = {transfer.plain_name(m[1]) for m in re.finditer(rb"^l.{9} +\d+ \S+ \S+ (.*) -> .*$", res.stdout, re.M)}
    for path in host.paths:
        if transfer.place_of(host, path) in links and not path.endswith("/"):
            raise BackupError(
                f"{host.name}: {path} is a symbolic link on the client: name the directory that it points to", USAGE
            )


def try_client(base, host):
    """try_once(), with a second chance at a terminal once the client's admin has let our key in."""
    while True:
        try:
            return try_once(base, host)
        except BackupError as err:
            if err.code != REFUSED or host.method != "ssh":
                raise
            print(f"{err}\nThe client must let this key in. Add this line to {authorized_file(host)} there:\n"
                  f"{authorized_line(base)}", flush=True)  # fmt: skip
            if not sys.stdin.isatty() or ask("Press Enter to try again, or q to stop: ").startswith("q"):
                raise BackupError(
                    f"{host.name}: not added yet. Run the same command again once that line is there", REFUSED
                ) from None


def authorized_file(host):
    home = "/root" if host.user == "root" else f"~{host.user}"
    return f"{home}/.ssh/authorized_keys"


def text_of(args):
    """The text of a host's file, with the values given on the command line."""
    lines = ["# Written by `itree-backup add`; see itree-backup.conf(5).", "[host]"]
    lines += [f"{key} = {getattr(args, key)}" for key in ("address", "port", "method", "user", "password_file")
              if getattr(args, key)]  # fmt: skip
    for key, values in (("paths", args.path), ("exclude", args.exclude)):
        if values:
            lines += [f"{key} =", *(f"    {value}" for value in values)]
    return "\n".join(lines) + "\n"


def draft(base, args):
    """The config.Host that the arguments of `add` describe, checked as its file would be. Raises BackupError."""
    path = base.conf / "hosts.d" / f"{config.check_name(args.host)}.conf"
    if path.exists():
        raise BackupError(f"there is a host '{args.host}' already: edit {path}, or retire it first", USAGE)
    for value in (*args.path, *args.exclude):
        if "\n" in value or value != value.strip():
            raise BackupError(f"'{value}' has a line break, or blanks at an end, which {path} cannot hold", USAGE)
    text = text_of(args)
    return config.parse_host(base, args.host, path, text), path, text


def add(base, args):
    """Add a host: confirm its key, try it, write its file, start its timer. Raises BackupError.

    On failure, nothing but known_hosts has changed.
    """
    host, path, text = draft(base, args)
    if host.method == "ssh":
        accept_key(base, host, args.fingerprint or "")
    if args.no_try:
        print(f"{host.name}: not tried" +
              f"; the client must have this line in {authorized_file(host)}:\n{authorized_line(base)}"
              * (host.method == "ssh"))  # fmt: skip
    else:
        try_client(base, host)
        print(f"{host.name}: the client answers, and has {', '.join(host.paths)}")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(path, text)
    print(f"{host.name}: written to {path}")
    if args.no_timers:
        return
    setup.call("systemctl", "enable", "--now", f"backup@{host.name}.timer")
    print(f"{host.name}: backed up each night from now on; 'systemctl start --no-block backup@{host.name}' begins now, "
          f"and 'journalctl -fu backup@{host.name}' shows it")  # fmt: skip


def retire(base, name, no_timers):
    """Stop backing a host up. Its snapshots stay, and its file gets another name. Raises BackupError."""
    path = base.conf / "hosts.d" / f"{config.check_name(name)}.conf"
    if not path.exists():
        have = ", ".join(config.hosts(base)) or "none"
        raise BackupError(f"there is no host '{name}' (hosts there are: {have})", USAGE)
    if not no_timers:
        setup.call("systemctl", "disable", "--now", f"backup@{name}.timer")
    path.rename(f"{path}{RETIRED}")
    print(f"{name}: retired. Its snapshots stay until you remove them: itree-backup forget {name} --yes")
    print(f"{name}: to resume, rename {path}{RETIRED} back and run itree-backup setup")
