# SPDX-License-Identifier: GPL-2.0-only
"""Commands that the client runs before and after its backup: a dump of a database, a snapshot of LVM.

The key that backups use may only read, so hooks have a key of their own. The
line that the client's admin puts into authorized_keys lets that key run these
commands and nothing else.
"""

import re
import subprocess
import threading

from . import setup, transfer
from .errors import CLIENT, FAILED, REFUSED, USAGE, BackupError, Interrupted

KEY = "hook"  # the private key in ssh/ that runs them
TAIL = 2000  # bytes of a command's output that are kept for its message
STOPPING = 30  # seconds that `after` has when the run itself was stopped; systemd kills the unit soon after
DENIED = 126  # exit status of the line in authorized_keys for any other command


def wanted(host):
    return bool(host.before or host.after)


def authorized(base, host):
    """The line for the client's authorized_keys. Raises BackupError if the key cannot be read."""
    # config.HOOK has no character that is special to a shell.
    words = f"'{host.before}') {host.before};; " * bool(host.before)
    words += f"'{host.after} '[a-z]*) {host.after} ${{SSH_ORIGINAL_COMMAND##* }};; " * bool(host.after)
    words += f"*) echo this key may not run that >&2; exit {DENIED};;"
    return f'restrict,command="case $SSH_ORIGINAL_COMMAND in {words} esac" {setup.public_half(base.conf, KEY)}'


def run(base, host, setting, command, limit):
    """Run a command on the client for at most `limit` seconds. setting: before or after, for messages.

    Raises BackupError if the command fails.
    """
    key = base.conf / "ssh" / KEY
    if not key.exists():
        raise BackupError(
            f"{host.name}: [host] {setting} needs the key {key}, which does not exist: run 'itree-backup setup', and "
            "put the line that it prints into the client's authorized_keys",
            USAGE,
        )
    print(f"{host.name}: {setting}: the client runs {command}", flush=True)
    argv = [*transfer.remote_shell(base, host, key).split(), "--", f"{host.user}@{host.address}", command]
    proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    tail = bytearray()

    def drain():
        # The client may send without end.
        while chunk := proc.stdout.read1(1 << 16):
            tail[:] = (tail + chunk)[-TAIL:]

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        code = proc.wait(limit)
    except subprocess.TimeoutExpired:
        raise BackupError(f"{host.name}: [host] {setting}: '{command}' did not end within {limit} s ([host] "
                          "hook_timeout), and may still run on the client", CLIENT) from None  # fmt: skip
    finally:
        proc.kill()
        proc.wait()
        reader.join(5)
    output = [transfer.show(line) for line in bytes(tail).splitlines() if line.strip()][-20:]
    for line in output:
        print(f"{host.name}: {setting}: {line}", flush=True)
    if code:
        raise failure(base, host, setting, command, code, output)


def failure(base, host, setting, command, code, output):
    """The BackupError for a command that ended with `code`, or for an ssh that did not get so far."""
    text = "\n".join(output)
    if code == 255 and re.search(transfer.STRANGER, text):
        return transfer.explain(host, code, output)
    where = f"{host.name}: [host] {setting}: '{command}'"
    if code == DENIED or (code == 255 and "Permission denied" in text):
        return BackupError(
            f"{where}: the client does not let us run it: {'; '.join(output[-3:])}. Put this line into its "
            f"authorized_keys, in place of an older one for the same key:\n{authorized(base, host)}",
            REFUSED,
        )
    last = "; ".join(output[-3:]) or "it printed nothing"
    if code == 255:
        return BackupError(f"{where}: no connection, or it broke: {last}", CLIENT)
    return BackupError(f"{where} ended with {code} on the client: {last}", FAILED)


def before(base, host):
    """Run [host] before. Raises BackupError: without it, there must be no backup."""
    if host.before:
        try:
            run(base, host, "before", host.before, host.hook_timeout)
        except Interrupted:
            raise
        except BackupError as err:
            raise BackupError(f"{err}\nNothing was fetched", err.code) from None


def after(base, host, state):
    """Run [host] after, with the outcome of the run as its argument; returns why that failed, or an empty text."""
    if not host.after:
        return ""
    limit = min(host.hook_timeout, STOPPING) if state == "interrupted" else host.hook_timeout
    try:
        run(base, host, "after", f"{host.after} {state}", limit)
    except BackupError as err:
        return str(err)
    return ""
