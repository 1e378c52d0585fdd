# SPDX-License-Identifier: GPL-2.0-only
"""rsync: its command line, its output for each file, and the meaning of its exit codes."""

import contextlib
import ctypes
import dataclasses
import errno
import os
import re
import selectors
import signal
import subprocess
import sys
import time

from . import quota
from .errors import CLIENT, FAILED, REFUSED, SPACE, BackupError
from .store import free

# rsync's line for a file: how it changed, MD5 or blanks, size, name.
LINE = re.compile(rb"([<>ch.*][fdLDS][^ ]{9}|[<>ch.*][fdLDS] {9}) ([0-9a-f]{32}| {32}) (\d+) (.*)", re.S)
# rsync's file list had a name twice: a directory above two paths, or a listing that was changed while it was read.
TWICE = re.compile(rb"removing duplicate name .* from file list \(\d+\)", re.S)
# One file or directory that the client could not give. link_stat and change_dir are not among them: what they name are
# the paths of the configuration.
SENDER = r"rsync: (?:\[sender\] )?"
PLACE = r'\(?"(?P<name>.*?)"\)?(?: \(in [^)]*\))?\)?'
GAPS = [re.compile(p, re.S) for p in (
    SENDER + r"(?:send_files failed to open|read errors mapping|opendir|readdir|readlink_stat|readlink) ?" + PLACE +
    r"(?: failed)?: (?P<why>.*) \(\d+\)",
    r"ERROR: (?P<name>.*?) (?P<why>failed verification) -- update (?:discarded|put into partial-dir|retained)\.",
)]  # fmt: skip
# A directory in which something vanished has itself vanished; if it was the only one, the sender ends at once.
GONE = re.compile(SENDER + "(?:link_stat|change_dir) " + PLACE + r" failed: No such file or directory \(2\)|"
                  r"rsync: \[Receiver\] (?:read|write) error: .*", re.S)  # fmt: skip
# Lines that accompany those above, or concern a file that rsync retries by itself.
BESIDE = re.compile(r"rsync error: some files/attrs were not transferred .*|rsync warning: some files vanished .*|"
                    r"IO error encountered -- skipping file deletion|file has vanished: .*|"
                    r"directory has vanished: .*", re.S)  # fmt: skip
TWICE_SENT = re.compile(r"WARNING: (.*) failed verification -- update .* \(will try again\)\.", re.S)
# A link to an inode that has as many as the file system allows. rsync does not go on after it.
FULL_INODE = re.compile(r'rsync: (?:\[\w+\] )?link ".*" => .* failed: Too many links \(\d+\)', re.S)
VANISHED = re.compile(r'(file|directory) has vanished: "(.*)"(?: \(in [^)]*\))?', re.S)
# An attribute that could not be stored: (file, attribute, why, error number).
ATTRIBUTE = re.compile(r'rsync: (?:\[\w+\] )?rsync_xal_set: \w+\("?(.*?)"?, ?"(.*?)"\) failed: (.*) \((\d+)\)', re.S)
# ssh's words for a host key that is not the known one.
STRANGER = r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED|host key is known for"
ESCAPE = re.compile(rb"\\#(\d{3})")
# NEVER: this kernel or process may not set attributes of that name. TOO_LARGE: this one does not fit.
NEVER = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EINVAL}
TOO_LARGE = {errno.ENOSPC, errno.E2BIG, errno.ERANGE}
FULL = 16 << 20  # a volume with less free space than this is full: bytes
TEMPORARY = re.compile(r"/\.([^/]*)\.[A-Za-z0-9]{6}$")  # rsync's name of a file that is not complete
SYNC_EVERY = 30.0  # after a power cut, at most so many seconds of the run are sent again
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class TooManyLinks(BackupError):
    """A file of the snapshots linked to cannot take the links of one more snapshot."""


@dataclasses.dataclass
class Outcome:
    """What a transfer brought.

    total: bytes of all files of the list, whether they came or were here; names: different names in rsync's list;
    regular: those of them that are regular files;
    vanished: names that vanished while they were read; trees: whole directories vanished; second: this is a second
    look at some directories; gaps: {name: why} of what the client could not give; retried: names that were sent twice,
    because they changed meanwhile; refused: attributes that this volume cannot store; lost: {(name, attribute): why}
    of single ones. Names are as rsync prints them.
    """

    files: int = 0
    bytes: int = 0
    total: int = 0
    names: int | None = None
    regular: int = 0
    vanished: list = dataclasses.field(default_factory=list)
    trees: bool = False
    second: bool = False
    gaps: dict = dataclasses.field(default_factory=dict)
    retried: set = dataclasses.field(default_factory=set)
    refused: set = dataclasses.field(default_factory=set)
    lost: dict = dataclasses.field(default_factory=dict)

    def add(self, more):
        """Add the outcome of a second look; only what vanished in that one is still missing."""
        self.files += more.files
        self.bytes += more.bytes
        self.vanished, self.trees = more.vanished, more.trees
        self.gaps |= more.gaps
        self.retried |= more.retried
        self.refused |= more.refused
        self.lost |= more.lost

    def take(self, line):
        """Note what a line of rsync's standard error says about one file; returns whether the line is accounted for."""
        vanished = VANISHED.fullmatch(line)
        if vanished:
            self.vanished.append(vanished[2])
            self.trees |= vanished[1] == "directory"
            return True
        if self.second and GONE.fullmatch(line):
            self.trees = True
            return True
        gap = next(filter(None, (pattern.fullmatch(line) for pattern in GAPS)), None)
        if gap:
            self.gaps[gap["name"]] = gap["why"]
            return True
        match = TWICE_SENT.fullmatch(line)
        if match:
            self.retried.add(match[1])
            return True
        match = ATTRIBUTE.fullmatch(line)
        if match:
            name, attribute, why, number = match.groups()
            # A refused user.* attribute is the fault of its file: leaving out the name would lose it on all others.
            if int(number) in NEVER and not attribute.startswith("user."):
                self.refused.add(attribute)
            elif int(number) in NEVER | TOO_LARGE:
                # The file still has its temporary name.
                self.lost[(TEMPORARY.sub(r"/\1", name), attribute)] = why
            else:
                return False
            return True
        return bool(BESIDE.fullmatch(line))


def show(path):
    """A path, or a line of rsync with one in it, as a line for people."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def unescape(name):
    """A file name as it is on the client, from how rsync prints it."""
    return ESCAPE.sub(lambda m: bytes([int(m[1], 8)]), name)


def plain_name(name):
    """Where a snapshot has a file that rsync names, as bytes."""
    return unescape(os.fsencode(name)).strip(b"/")


def remote_shell(base, host, key=None):
    """The ssh of --rsh: it uses the appliance's keys and known hosts alone, never asks, and trusts no unknown host.

    key: the private key to log in with, if it is not the one that backups use.
    """
    keys = base.conf / "ssh"
    if key is None:
        key = keys / f"{host.name}.key" if (keys / f"{host.name}.key").exists() else keys / "id"
    words = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes",
             "-o", f"UserKnownHostsFile={keys}/known_hosts", "-o", "GlobalKnownHostsFile=none",
             "-o", "UpdateHostKeys=no", "-o", "ForwardAgent=no", "-o", "ClearAllForwardings=yes",
             "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=4",
             "-i", str(key)]  # fmt: skip
    if host.port:
        words += ["-p", str(host.port)]
    return " ".join(words)


def source(host, path):
    """rsync's word for a path of the client: USER@ADDRESS:PATH, or USER@ADDRESS::MODULE/PATH; here, PATH."""
    if host.method == "local":
        return path
    address = f"[{host.address}]" if ":" in host.address else host.address
    login = f"{host.user}@{address}" if host.user else address
    return f"{login}{':' if host.method == 'ssh' else '::'}{path}"


def sources(host, listed):
    """rsync's source arguments: all paths, or the root that the names of a list are relative to."""
    if host.method == "local":
        return host.paths
    if listed:
        # The names below a snapshot begin at / or at the module.
        paths = ["/" if host.method == "ssh" else host.paths[0].split("/")[0] + "/"]
    else:
        paths = host.paths
    colon = ":" if host.method == "ssh" else "::"
    return [source(host, path) if n == 0 else f"{colon}{path}" for n, path in enumerate(paths)]


def place_of(host, path):
    """Where in a snapshot a path of the configuration is, as bytes; empty if it is all of it."""
    return os.fsencode((path if host.method == "ssh" else path.partition("/")[2]).strip("/"))


def listing(names):
    """Names in the format of rsync's --files-from, each terminated by a NUL."""
    return b"".join(name + b"\0" for name in names)


def names_of(host):
    """The host's paths as a listing()."""
    return listing(place_of(host, path) or b"." for path in host.paths)


# What --files-from means. names: these alone, if they are still there. trees: with all below them; they must be there.
# files: what is directly in them, below: what is anywhere below them, if it is not in dest yet. With files, directories
# come without contents.
LISTED = {
    "names": ["--ignore-missing-args"],
    "trees": ["--recursive"],
    "files": ["--ignore-existing", "--dirs"],
    "below": ["--ignore-existing", "--recursive"],
}


def command(base, host, dest, link_dests, parts, listed=None, kind="names", left_out=(), checksums=False):
    """The whole rsync command into dest; files like those below link_dests become links to them.

    listed: a file of names, each terminated by a NUL, to fetch instead of everything; kind: a key of LISTED. left_out:
    names of attributes. checksums: compare files by their data, not by size and time.
    """
    argv = ["rsync", "-aHAX", "--numeric-ids", "--relative", "--8-bit-output", "--no-human-readable", "--stats",
            # Holes stay holes. rsync prints the names that its list has twice.
            "--sparse", "--debug=dup1",
            "--checksum-choice=md5", "--out-format=%i %C %l %n", f"--timeout={host.timeout}",
            f"--partial-dir={parts}",
            # Times to the nanosecond: by whole seconds a file rewritten within the second would pass for unchanged.
            "--modify-window=-1",
            # Labels of the client's policy mean nothing here, and setting them needs privileges we do without.
            "--filter=-x trusted.*", "--filter=-x security.selinux"]  # fmt: skip
    argv += [f"--exclude={e}" for e in host.exclude] + [f"--link-dest={d}" for d in link_dests]
    if listed:
        argv += ["--from0", f"--files-from={listed}", *LISTED[kind]]
    argv += [f"--filter=-x {name}" for name in left_out]
    if checksums:
        argv.append("--checksum")
    if host.one_file_system:
        argv.append("--one-file-system")
    if host.bandwidth:
        argv.append(f"--bwlimit={host.bandwidth}")
    if host.compress:
        argv.append("--compress")
    return [*argv, *connection(base, host), "--", *sources(host, listed), f"{dest}/"]


def connection(base, host, key=None):
    """rsync's options for reaching a client: how, where, and with which secret. key: as in remote_shell()."""
    if host.method == "local":
        return []
    if host.method == "ssh":
        return [f"--rsh={remote_shell(base, host, key)}"]
    argv = [f"--port={host.port}"] if host.port else []
    return [*argv, "--contimeout=30", *([f"--password-file={host.password_file}"] if host.password_file else [])]


def environ():
    """The environment that rsync runs in: messages that this module can parse, and arguments passed unchanged."""
    return {**os.environ, "LC_ALL": "C", "RSYNC_PROTECT_ARGS": "0", "RSYNC_OLD_ARGS": "0"}


def client_trouble(text):
    """(the client's own line, what to do) if its rsync is missing, too old or restricted; else None."""
    for pattern, advice in (
        (r"rsync: (command )?not found|rsync: No such file or directory",
         "Install rsync on the client; if it is there under another name, link it into the PATH of the login"),
        (r"on remote machine: .*unknown option|unknown checksum|Unknown option",
         "The client's rsync is too old: it takes 3.2.0 or later"),
        (r"rrsync|SSH_ORIGINAL_COMMAND",
         "The client's authorized_keys restricts what this key may do: compare its command= with the line that "
         "'itree-backup setup' prints"),
    ):  # fmt: skip
        line = next((line for line in text.splitlines() if re.search(pattern, line)), None)
        if line:
            return line, advice
    return None


def explain(host, code, output):
    """The BackupError for rsync's exit code and its last messages."""
    last = "; ".join(output[-3:]) or "it said nothing"
    text = "\n".join(output)
    where = f"{host.name} ({host.address})"
    if re.search(STRANGER, text):
        return BackupError(
            f"{where}: the host's key is not the one in ssh/known_hosts. Either this is another machine, or its "
            "key was replaced: find out from its admin, by another way than this network, before changing that file. "
            "Nothing was fetched",
            REFUSED,
        )
    if re.search(r"Permission denied \([a-z]|@ERROR: (auth|access|Unknown module|chroot)", text):
        return BackupError(f"{where}: it does not let us in: {last}", REFUSED)
    if "Disk quota exceeded" in text:
        return quota.exceeded(where)
    if "No space left on device" in text:
        return BackupError(
            f"{where}: the backup volume filled up in mid-run. What was fetched is kept and used by the next run; "
            "the good snapshots are as they were. Keep fewer snapshots, run 'itree-backup discard', or "
            "make the volume larger",
            SPACE,
        )
    trouble = client_trouble(text) if code not in (23, 24) else None
    if trouble:
        return BackupError(f"{where}: the client answered: {trouble[0]}. {trouble[1]}. Nothing was fetched", REFUSED)
    if code in (5, 10, 12, 30, 35, 255) or code < 0:
        return BackupError(f"{where}: no connection, or it broke (rsync ended with {code}): {last}. What was fetched "
                           "is kept; the next run goes on from there", CLIENT)  # fmt: skip
    if code == 23:
        return BackupError(
            f"{where}: some files could not be read or written, so this is no good snapshot: {last}. Repair or "
            "exclude them; what was fetched is kept for the next run"
        )
    return BackupError(f"{where}: rsync ended with {code}: {last}", FAILED)


def with_parent():
    """In the child: end when the process that reads our output ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Spool:
    """The file in which a run notes `md5 name` of each file it received; read again if the run was interrupted."""

    def __init__(self, path, mode):
        self.handle = open(path, mode)  # noqa: SIM115
        self.synced = time.monotonic()

    def add(self, md5, name):
        # Escaped as rsync does it: one line a file whatever its name.
        self.handle.write(md5 + b" " + name + b"\n")
        if time.monotonic() - self.synced > SYNC_EVERY:
            self.sync()

    def sync(self):
        self.handle.flush()
        os.fsync(self.handle.fileno())
        self.synced = time.monotonic()


def read_spool(path):
    """Yield (md5 or None, name) from a Spool's file; a truncated last line is ignored."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as handle:
        for line in handle:
            # A power cut may have left anything at the end: a line without a valid sum counts as not written.
            match = re.fullmatch(rb"([0-9a-f]{32}|-{32}) (.+)\n", line, re.S)
            if match:
                md5 = None if match[1].startswith(b"-") else bytes.fromhex(match[1].decode())
                yield md5, unescape(match[2])


class Progress:
    """Prints progress: each second on a terminal, each minute in a log."""

    def __init__(self, what):
        self.what, self.tty = what, sys.stderr.isatty()
        self.shown = time.monotonic()

    def tick(self, text):
        now = time.monotonic()
        if now - self.shown >= (1 if self.tty else 60):
            self.shown = now
            print(f"{self.what}: {text}", file=sys.stderr, end="\r\x1b[K" if self.tty else "\n", flush=True)


def lines_of(proc, on_error):
    """Yield rsync's output lines; standard error goes to on_error meanwhile."""
    rest = {proc.stdout: b"", proc.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in rest:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                stream = key.fileobj
                data = os.read(stream.fileno(), 1 << 16)
                *lines, rest[stream] = (rest[stream] + data).split(b"\n")
                if not data:
                    selector.unregister(stream)
                    lines += [rest[stream]] if rest[stream] else []
                for line in lines:
                    if stream is proc.stderr:
                        on_error(os.fsdecode(line).rstrip())
                    else:
                        yield line


def transfer(base, host, dest, link_dests, store, name, lock_fd, listed=None, kind="names", checksums=False):
    """Fetch a host into dest, noting sums in the store. Returns an Outcome; raises BackupError.

    dest must be empty, or have none of the files listed: rsync changes owner
    and mode of a file it finds there in place, and that file may be a link to
    one of a good snapshot. listed: names, each terminated by a NUL, to fetch instead of everything, as a further part
    of the same run. kind, checksums: as in command().
    """
    more = listed is not None
    if not more and host.method != "local" and any(re.search(r"[*?[]", p) for p in host.paths):
        # As arguments they would be patterns: data[1] must not fetch data1.
        listed, kind = names_of(host), "trees"
    with contextlib.ExitStack() as stack:
        path = None
        if listed is not None:
            path = store.meta / f"{name}.{'again' if more else 'paths'}"
            path.touch()
            quota.share(store, path)
            path.write_bytes(listed)
            stack.callback(path.unlink)
        argv = command(base, host, dest, link_dests, store.meta / "parts", path, kind, store.left_out(), checksums)
        return follow(argv, host, store, name, lock_fd, Outcome(second=kind in ("files", "below")), more)


def follow(argv, host, store, name, lock_fd, outcome, more):
    """Run rsync and note what it says in an Outcome, which is returned. Raises BackupError.

    more: append to the sums that the run has noted already.
    """
    output, others, twice = [], [], set()

    def on_error(line):
        if not outcome.take(line) and line.startswith(("rsync", "ERROR")):
            others.append(line)
        line = show(line)
        output.append(line)
        del output[:-50]
        print(f"{host.name}: {line}", file=sys.stderr, flush=True)

    spool, progress = Spool(store.sums_of(name), "ab" if more else "wb"), Progress(host.name)
    quota.share(store, store.sums_of(name))
    proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=environ(), pass_fds=(lock_fd,), preexec_fn=with_parent)  # noqa: PLW1509  # fmt: skip
    try:
        for line in lines_of(proc, on_error):
            match = LINE.fullmatch(line)
            if TWICE.fullmatch(line):
                # A set, because two of rsync's processes print some of these lines.
                twice.add(line)
            if not match:
                found = re.match(rb"Number of files: (\d+)(?: \(reg: (\d+))?", line)
                if found:
                    outcome.names, outcome.regular = int(found[1]), int(found[2] or 0)
                found = re.match(rb"Total file size: (\d+)", line)
                outcome.total = int(found[1]) if found else outcome.total
                continue
            how, md5, size, name_ = match.groups()
            # h: a further link to a file that is listed by itself.
            if how[1:2] == b"f" and how[:1] != b"h":
                spool.add(md5 if md5.strip() else b"-" * 32, name_)
                outcome.files += 1
                outcome.bytes += int(size)
                progress.tick(f"{outcome.files} new files, {outcome.bytes >> 20} MiB")
        code = proc.wait()
    finally:
        if proc.poll() is None:
            proc.terminate()
            proc.wait()
        proc.stdout.close()
        proc.stderr.close()
        spool.sync()
        spool.handle.close()
    # On a full volume attributes do not fit either: report the missing space, not them.
    full = outcome.lost and free(store.path)[0] < FULL
    known = (outcome.gaps or outcome.refused or outcome.lost or outcome.trees) and not others and not full
    if code not in (0, 24) and not (code == 23 and known):
        if any(FULL_INODE.fullmatch(line) for line in others):
            raise TooManyLinks(f"{host.name}: a file of the last snapshots has all the hard links this volume allows")
        raise explain(host, code, output)
    outcome.names = None if outcome.names is None else outcome.names - len(twice)
    return outcome
