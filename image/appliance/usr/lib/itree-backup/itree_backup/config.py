# SPDX-License-Identifier: GPL-2.0-only
"""Configuration: itree-backup.conf and one file a host, see itree-backup.conf(5).

An unknown key or a value out of range is an error: a misspelt retention must
not silently become the default.
"""

import configparser
import dataclasses
import os
import pathlib
import re

from .errors import USAGE, BackupError

DIRECTORY = pathlib.Path("/etc/itree-backup")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PAGE_PASSWORD = pathlib.Path("page") / "password"  # below the configuration directory: a hash by werkzeug
NAME_RULE = "letters, digits, dot, minus and underscore, at most 63, and the first a letter or digit"
# Only characters that neither a remote shell nor rsync interprets.
ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]+:[0-9A-Fa-f:.]*")
USER = re.compile(r"[a-z_][a-z0-9_.-]*")
# A program on the client and its arguments, without characters that a shell interprets.
HOOK = re.compile(r"/[A-Za-z0-9._/+=:,@-]+( [A-Za-z0-9._/+=:,@-]+)*")
SMALLEST_QUOTA = 1 << 20  # bytes
LISTS = ("paths", "exclude")  # keys whose value is a list, one a line
GLOBAL = {
    "volume": {"directory", "min_free_percent", "min_free_inodes_percent", "at_once"},
    "keep": {"last", "daily", "weekly", "monthly"},
    "notify": {"mail_to", "webhook", "apprise", "heartbeat"},
    "metrics": {"directory"},
    "status": {"max_age_hours", "warn_free_percent"},
    "hold": {"fall_percent"},
    "lock": {"days"},
    "verify": {"cycle_days", "checksum_days"},
    "quota": {"size", "inodes"},
}
PER_HOST = {
    "host": {"address", "port", "method", "user", "paths", "exclude", "bandwidth", "compress", "timeout",
             "one_file_system", "password_file", "heartbeat", "before", "after", "hook_timeout"},
    "keep": GLOBAL["keep"],
    "hold": GLOBAL["hold"],
    "lock": GLOBAL["lock"],
    "verify": {"checksum_days"},
    "quota": GLOBAL["quota"],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a host may take of the volume: bytes and inodes; 0 is no limit."""

    size: int = 0
    inodes: int = 0


@dataclasses.dataclass
class Settings:
    """Settings for all hosts. Percentages are of the volume; keep holds numbers of
    snapshots, days, weeks, months."""

    conf: pathlib.Path
    volume: pathlib.Path
    min_free: float
    min_free_inodes: float
    at_once: int  # hosts that are backed up at the same time
    keep: dict
    mail_to: str
    webhook: str
    apprise: list
    heartbeat: str
    metrics: pathlib.Path | None
    max_age: float  # hours
    warn_free: float
    fall: float  # percent of the names
    cycle: int  # days within which each file of each snapshot is read again
    checksum: int  # days after which a run compares by checksums; 0 is never
    quota: Limits
    lock: int  # days for which a snapshot is locked


@dataclasses.dataclass
class Host:
    """One client. bandwidth is in KiB/s (0: no limit), timeout in seconds without a byte.

    method: ssh or rsyncd, or local for a snapshot on this machine (never in a host's file). before, after: commands
    that the client runs; hook_timeout: seconds that each of them may take.
    """

    name: str
    address: str
    port: int
    method: str
    user: str
    paths: list
    exclude: list
    bandwidth: int
    compress: bool
    timeout: int
    one_file_system: bool
    password_file: str
    keep: dict
    fall: float
    heartbeat: str
    checksum: int
    quota: Limits = Limits()
    lock: int = 0
    before: str = ""
    after: str = ""
    hook_timeout: int = 3600


def check_name(name):
    """Raise unless a host name can be the name of a directory and of a systemd instance."""
    if not HOST.fullmatch(name):
        raise BackupError(f"'{name}' cannot be the name of a host: {NAME_RULE}", USAGE)
    return name


def check_lists(path, text):
    """Raise if text in a list may be a comment or part of a name: either guess would silently lose the other."""
    in_list = False
    for number, line in enumerate(text.splitlines(), 1):
        key = re.match(r"(\w+)\s*=", line)
        if line[:1] not in (" ", "\t", "#", ";", ""):
            in_list = bool(key) and key[1].lower() in LISTS
        value = line[key.end() :].strip() if key else line.strip()
        if in_list and (key or line[:1] in (" ", "\t")) and re.search(r"(^|\s)[#;]", value):
            raise BackupError(
                f"{path}: line {number}: '{value}' may be a name or a comment. A comment stands on a line of its own, "
                "without blanks before it. For a name: in exclude write [#] for # and [;] for ; in paths give a "
                "directory above it",
                USAGE,
            )


def read(path, known, text=None):
    """A configuration file as {section: {key: value}}; anything unknown is an error. text: replaces the file's own."""
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#", ";"), delimiters=("=",))
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8") if text is None else text
        parser.read_string(text, source=str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as err:
        why = err.strerror if isinstance(err, OSError) else " ".join(str(err).split())
        raise BackupError(f"{path} cannot be read: {why}", USAGE) from err
    check_lists(path, text)
    for section in parser.sections():
        if section not in known:
            raise BackupError(f"{path}: unknown section [{section}]; known sections: {', '.join(sorted(known))}", USAGE)
        for key in parser[section]:
            if key not in known[section]:
                raise BackupError(
                    f"{path}: [{section}]: unknown key '{key}'; known keys: {', '.join(sorted(known[section]))}", USAGE
                )
    return {name: dict(parser[name]) for name in parser.sections()}


class Values:
    """One section of a file, asked for values of a kind and range."""

    def __init__(self, path, section, values):
        self.path, self.section, self.values = path, section, values

    def wrong(self, key, what):
        raise BackupError(f"{self.path}: [{self.section}] {key}: '{self.values.get(key, '')}' is not {what}", USAGE)

    def text(self, key, default=""):
        return self.values.get(key, default).strip()

    def lines(self, key):
        return [line.strip() for line in self.values.get(key, "").splitlines() if line.strip()]

    def number(self, key, default, low, high, kind=int):
        text = self.text(key)
        if not text:
            return default
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            self.wrong(key, f"a number from {low} to {high}")
        return value

    def size(self, key, default):
        """Bytes: a number with an optional suffix K, M, G or T (powers of 1,024)."""
        text = self.text(key)
        match = re.fullmatch(r"(\d{1,15})([KMGT]?)", text)
        if text and not match:
            self.wrong(key, "a size such as 500G (K, M, G or T; without one of them, bytes)")
        return int(match[1]) << 10 * " KMGT".index(match[2] or " ") if text else default

    def truth(self, key, default):
        text = self.text(key).lower()
        if text not in ("", "yes", "no"):
            self.wrong(key, "yes or no")
        return {"": default, "yes": True, "no": False}[text]

    def web_address(self, key):
        """An http or https address, or an empty text."""
        value = self.text(key)
        if value and not re.fullmatch(r"https?://\S+", value):
            self.wrong(key, "an http or https address")
        return value

    def word(self, key, default, pattern, what):
        value = self.text(key) or default
        if value and not pattern.fullmatch(value):
            self.wrong(key, what)
        return value


def keep_of(path, values, default):
    section = Values(path, "keep", values)
    keep = {key: section.number(key, default[key], 0, 10000) for key in default}
    if not any(keep.values()):
        raise BackupError(f"{path}: [keep] would keep nothing: give last, daily, weekly or monthly", USAGE)
    return keep


def fall_of(path, values, default):
    return Values(path, "hold", values).number("fall_percent", default, 1, 100, float)


def checksum_of(path, values, default):
    return Values(path, "verify", values).number("checksum_days", default, 0, 10000)


def lock_of(path, values, default):
    return Values(path, "lock", values).number("days", default, 0, 10000)


def quota_of(path, values, default):
    section = Values(path, "quota", values)
    size = section.size("size", default.size)
    if 0 < size < SMALLEST_QUOTA:
        section.wrong("size", "0, which is no limit, or at least 1M")
    return Limits(size, section.number("inodes", default.inodes, 0, 1 << 32))


def settings(conf):
    """Read itree-backup.conf of a configuration directory."""
    conf = pathlib.Path(conf)
    path = conf / "itree-backup.conf"
    found = read(path, GLOBAL)
    volume = Values(path, "volume", found.get("volume", {}))
    notify = Values(path, "notify", found.get("notify", {}))
    status = Values(path, "status", found.get("status", {}))
    metrics = Values(path, "metrics", found.get("metrics", {})).text("directory")
    directory = volume.text("directory", "/srv/backup")
    if not os.path.isabs(directory) or os.path.normpath(directory) == "/":
        volume.wrong("directory", "an absolute path below /")
    # ssh's options and rsync's --rsh are split at spaces.
    if re.search(r"\s", str(conf)):
        raise BackupError(f"{conf}: the configuration directory cannot have spaces in its name", USAGE)
    return Settings(
        conf=conf,
        volume=pathlib.Path(directory),
        min_free=volume.number("min_free_percent", 5, 0, 90, float),
        min_free_inodes=volume.number("min_free_inodes_percent", 5, 0, 90, float),
        at_once=volume.number("at_once", 4, 1, 1000),
        keep=keep_of(path, found.get("keep", {}), {"last": 3, "daily": 14, "weekly": 8, "monthly": 12}),
        mail_to=notify.text("mail_to"),
        webhook=notify.web_address("webhook"),
        apprise=notify.lines("apprise"),
        heartbeat=notify.web_address("heartbeat"),
        metrics=pathlib.Path(metrics) if metrics else None,
        max_age=status.number("max_age_hours", 36, 1, 10000, float),
        warn_free=status.number("warn_free_percent", 10, 0, 90, float),
        fall=fall_of(path, found.get("hold", {}), 50.0),
        cycle=Values(path, "verify", found.get("verify", {})).number("cycle_days", 28, 2, 10000),
        checksum=checksum_of(path, found.get("verify", {}), 0),
        quota=quota_of(path, found.get("quota", {}), Limits()),
        lock=lock_of(path, found.get("lock", {}), 0),
    )


def check_paths(path, section, method, paths):
    """Paths to back up: absolute for ssh, MODULE[/PATH] of one module for rsyncd, none within another."""
    if not paths:
        raise BackupError(f"{path}: [host] paths: name at least one path to back up", USAGE)
    for one in paths:
        parts = one.strip("/").split("/")
        if ".." in parts or "." in parts or re.search(r"[\x00-\x1f\x7f]", one):
            raise BackupError(f"{path}: [host] paths: '{one}' has a '.', '..' or control character in it", USAGE)
        if one.startswith("/") != (method == "ssh"):
            want = "an absolute path" if method == "ssh" else "MODULE or MODULE/PATH"
            raise BackupError(f"{path}: [host] paths: '{one}' is not {want}, which method = {method} wants", USAGE)
    plain = ["/" + one.strip("/") for one in paths]
    for one in plain:
        for other in plain:
            if one is not other and (other + "/").startswith(one.rstrip("/") + "/"):
                raise BackupError(f"{path}: [host] paths: {other} is within {one} already", USAGE)
    if method == "rsyncd" and len({one.split("/")[0] for one in paths}) > 1:
        raise BackupError(f"{path}: [host] paths: one connection serves one rsyncd module; "
                          "give each module a host file of its own", USAGE)  # fmt: skip


def host(base, name):
    """Read hosts.d/NAME.conf. Raises BackupError."""
    path = base.conf / "hosts.d" / f"{check_name(name)}.conf"
    if not path.exists():
        have = ", ".join(hosts(base)) or "none"
        raise BackupError(f"there is no host '{name}': {path} does not exist (hosts there are: {have})", USAGE)
    return parse_host(base, name, path)


def parse_host(base, name, path, text=None):
    """The Host that a file, or a text to be written to it, describes. Raises BackupError."""
    found = read(path, PER_HOST, text)
    values = Values(path, "host", found.get("host", {}))
    method = values.text("method", "ssh")
    if method not in ("ssh", "rsyncd"):
        values.wrong("method", "ssh or rsyncd")
    check_paths(path, values, method, values.lines("paths"))
    program = "the absolute path of a program on the client, with plain words as arguments: more belongs into a script"
    hooks = {key: values.word(key, "", HOOK, program) for key in ("before", "after")}
    for key in (key for key, command in hooks.items() if command and method != "ssh"):
        values.wrong(key, "possible with method = rsyncd: see 'pre-xfer exec' in rsyncd.conf(5) on the client")
    return Host(
        name=name,
        address=values.word("address", name, ADDRESS, "a host name or address"),
        port=values.number("port", 0, 1, 65535),
        method=method,
        user=values.word("user", "root" if method == "ssh" else "", USER, "a user name"),
        paths=values.lines("paths"),
        exclude=values.lines("exclude"),
        bandwidth=values.number("bandwidth", 0, 0, 1 << 30),
        compress=values.truth("compress", False),
        timeout=values.number("timeout", 600, 10, 86400),
        one_file_system=values.truth("one_file_system", True),
        password_file=values.text("password_file"),
        keep=keep_of(path, found.get("keep", {}), base.keep),
        fall=fall_of(path, found.get("hold", {}), base.fall),
        heartbeat=values.web_address("heartbeat"),
        checksum=checksum_of(path, found.get("verify", {}), base.checksum),
        quota=quota_of(path, found.get("quota", {}), base.quota),
        lock=lock_of(path, found.get("lock", {}), base.lock),
        hook_timeout=values.number("hook_timeout", 3600, 1, 86400),
        **hooks,
    )


def hosts(base):
    """Names of the configured hosts, sorted."""
    found = (base.conf / "hosts.d").glob("*.conf")
    return sorted(p.stem for p in found if HOST.fullmatch(p.stem))


def misnamed(base):
    """Files whose names cannot be those of hosts, sorted; editors' hidden files are ignored."""
    found = (base.conf / "hosts.d").glob("*.conf")
    return sorted(str(p) for p in found if not HOST.fullmatch(p.stem) and not p.name.startswith("."))
