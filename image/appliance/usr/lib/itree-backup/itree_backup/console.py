# SPDX-License-Identifier: GPL-2.0-only
"""What the console of the machine shows before anybody logs in."""

import json
import pathlib

from . import config, report, setup
from .errors import BackupError

PAGE_PORT = 8443  # as in itree-backup-page.socket
HOST_KEY = pathlib.Path("/etc/ssh/ssh_host_ed25519_key.pub")


def addresses():
    """Addresses of this machine that others may reach, as strings; none if it has no network."""
    try:
        links = json.loads(setup.call("ip", "-json", "address", "show", "scope", "global"))
    except (BackupError, OSError, ValueError):
        return []
    return [address["local"] for link in links for address in link.get("addr_info", ())
            if "local" in address]  # fmt: skip


def page_lines(conf):
    """Where the status page is, as lines."""
    if not (conf / config.PAGE_PASSWORD).exists():
        return ["status page:  off, until it has a password: itree-backup password"]
    where = [f"https://{f'[{a}]' if ':' in a else a}:{PAGE_PORT}/" for a in addresses()] or ["no network yet"]
    try:
        printed = setup.call("openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", conf / "page" / "cert.pem")
    except BackupError as err:
        # The other lines are needed all the more.
        return [f"status page:  has no usable certificate: {err}; itree-backup password makes one"]
    return [
        f"status page:  {' '.join(where)}  (user admin)",
        f"certificate:  SHA-256 {printed.strip().partition('=')[2]}",
    ]


def lines(base):
    """Lines for the console: the appliance's addresses and fingerprints, and the state of the hosts."""
    found = [f"address:      {' '.join(addresses()) or 'no network yet'}"]
    if HOST_KEY.exists():
        found.append(f"ssh host key: {setup.call('ssh-keygen', '-l', '-f', HOST_KEY).split()[1]}")
    found += page_lines(base.conf)
    try:
        state = report.state(base)
    except (BackupError, OSError) as err:
        found += [*map(str, report.machine_problems(base)), f"backup volume: {err}"]
        return found if config.hosts(base) else [*found, report.NO_HOSTS]
    found += [str(problem) for problem in state.others]
    healths = state.healths
    if not healths:
        return [*found, report.NO_HOSTS]
    unwell = [one for one in healths if not one.well]
    found.append(f"hosts:        {len(healths) - len(unwell)} of {len(healths)} well" + ":" * bool(unwell))
    found += [f"  {one.store.name}: {one.problems[0]}" for one in unwell[:5]]
    return found + [f"  and {len(unwell) - 5} more: itree-backup status"] * (len(unwell) > 5)
