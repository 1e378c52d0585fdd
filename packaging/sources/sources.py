# SPDX-License-Identifier: GPL-2.0-only
"""Find the pristine sources that sources.lock pins, and check them.

They are looked for in this order: a directory the user gives, the destination
(where earlier calls put them), the package mirror this machine is configured
with. A file with another SHA-256 than the pinned one is refused.
"""

import contextlib
import dataclasses
import fcntl
import fnmatch
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
LOCK = REPO / "sources.lock"
SUITE = "trixie"  # the Debian release whose sources sources.lock names
LATER = ("forky", "sid")  # asked for sources that the release does not have, or no longer has
KERNELS = ("trixie-backports", "sid", "experimental")  # asked for kernels newer than the release's


class SourceError(Exception):
    """A source is not available; the text says which one and what to do."""


@dataclasses.dataclass(frozen=True)
class Source:
    name: str
    version: str
    sha256: str | None  # None: a package pinned by name, checked by APT
    file: str

    def patterns(self):
        """File names under which this source is known, best first."""
        if self.sha256:
            return [self.file]
        return [f"{self.file}_*.deb", f"{self.file}.tar.xz", f"linux-{self.version}.*.tar.xz"]

    def wanted(self):
        if self.sha256:
            return f"{self.file} (SHA-256 {self.sha256})"
        return f"{self.file}_*.deb, Debian's package of the {self.version} series, or {self.file}.tar.xz out of it"


def cache_dir():
    base = os.environ.get("ITREE_CACHE")
    if base:
        return pathlib.Path(base)
    xdg = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(xdg) / "itree"


def read_lock(path=LOCK):
    """Read sources.lock into a dict by name."""
    found = {}
    try:
        text = pathlib.Path(path).read_text()
    except OSError as err:
        raise SourceError(f"cannot read {path}: {err.strerror}") from err
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        where = f"{path}, line {number}"
        if len(fields) != 4:
            raise SourceError(f"{where}: expected 'name version sha256 file', found {len(fields)} fields")
        name, version, sha256, file = fields
        if sha256 != "-" and not re.fullmatch("[0-9a-f]{64}", sha256):
            raise SourceError(f"{where}: '{sha256}' is not a SHA-256 (64 lower-case hex digits) or '-'")
        if "/" in file:
            raise SourceError(f"{where}: '{file}' must be a plain file name")
        if name in found:
            raise SourceError(f"{where}: {name} is listed twice")
        found[name] = Source(name, version, None if sha256 == "-" else sha256, file)
    return found


def sha256_of(path):
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _version_key(path):
    return [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path.name)]


def _candidates(source, directory):
    try:
        names = sorted(p for p in pathlib.Path(directory).iterdir() if p.is_file())
    except OSError:
        return []
    out = []
    for pattern in source.patterns():
        hits = [p for p in names if fnmatch.fnmatchcase(p.name, pattern)]
        out += sorted(hits, key=_version_key, reverse=True)
    return out


def _readable(path):
    """Whether a kernel package or tarball is complete, as far as its format tells."""
    tool = ["dpkg-deb", "--info"] if path.suffix == ".deb" else ["xz", "--list"]
    return subprocess.run([*tool, str(path)], capture_output=True, check=False).returncode == 0


def check(source, path):
    """Raise SourceError unless the file is what the lock names."""
    if source.sha256:
        got = sha256_of(path)
        if got != source.sha256:
            raise SourceError(
                f"{path} is not the file wanted for {source.name}: its SHA-256 is {got}, "
                f"wanted is {source.sha256}. It is damaged or another version: remove or replace it."
            )
    elif path.stat().st_size == 0 or not _readable(path):
        raise SourceError(f"{path} is damaged (wanted for {source.name}). Remove or replace it.")


def _take(path, dest):
    """Copy a file into dest under its own name, atomically."""
    target = dest / path.name
    if target.exists() and target.samefile(path):
        return target
    part = dest / f".{path.name}.{os.getpid()}"
    try:
        shutil.copyfile(path, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def _alone(dest):
    """Let others that fetch into dest wait: they would share one APT directory, whose lists each would replace."""
    dest.mkdir(parents=True, exist_ok=True)
    with open(dest / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fetch(source, dest, directory=None, mirror=None):
    """Give the path of a checked source in dest. Programs that fetch into the same directory take turns."""
    dest = pathlib.Path(dest)
    with _alone(dest):
        return _fetch(source, dest, directory, mirror)


def _fetch(source, dest, directory, mirror):
    if directory is not None:
        if not pathlib.Path(directory).is_dir():
            raise SourceError(f"{directory}: no such directory (given with --dir or ITREE_SOURCES)")
        for path in _candidates(source, directory)[:1]:
            check(source, path)
            return _take(path, dest)
    for path in _candidates(source, dest):
        try:
            check(source, path)
            return path
        except SourceError as err:
            print(f"fetch: {err} Fetching it again.", file=sys.stderr)
            path.unlink()
    looked = f"not in {directory}, " if directory else ""
    try:
        path = (mirror or Mirror(dest)).download(source)
    except SourceError as err:
        raise SourceError(
            f"{source.name} {source.version}: {looked}and not available from the package mirror.\n"
            f"  wanted: {source.wanted()}\n"
            f"  mirror: {err}\n"
            f"  Put the file into a directory and name the directory with --dir or ITREE_SOURCES."
        ) from err
    try:
        check(source, path)
    except SourceError as err:
        path.unlink(missing_ok=True)
        raise SourceError(
            f"{source.name} {source.version}: the download is damaged and was removed.\n"
            f"  wanted: {source.wanted()}\n  found:  {err}\n"
            f"  Try again, or put the file into a directory and name the directory with --dir or ITREE_SOURCES."
        ) from err
    return path


def _codename():
    try:
        text = pathlib.Path("/etc/os-release").read_text()
    except OSError:
        return ""
    match = re.search(r"^VERSION_CODENAME=\"?(\w+)", text, re.MULTILINE)
    return match[1] if match else ""


def host_stanzas(etc="/etc/apt", codename=None, updates=False):
    """The Debian archives the host uses, as (URIs, suites, raw Signed-By or None); updates: security archives, too.

    The first is always the release itself.
    """
    codename = codename or _codename()
    etc = pathlib.Path(etc)
    mine = {codename, SUITE, "stable"}
    if updates:
        mine |= {f"{codename}-security", f"{codename}-updates"}
    out = []
    for file in sorted((etc / "sources.list.d").glob("*.sources")):
        for block in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", file.read_text())):
            fields = {}
            for key, value in re.findall(r"(?m)^([\w-]+):((?:.*)(?:\n[ \t].*)*)", block):
                fields[key.lower()] = value.strip("\n")
            suites = fields.get("suites", "").split()
            if fields.get("enabled", "yes").strip().lower() == "no" or "deb" not in fields.get("types", "").split():
                continue
            if "main" in fields.get("components", "").split() and mine & set(suites):
                out.append((fields["uris"].split(), suites, fields.get("signed-by")))
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    for file in lists:
        if not file.is_file():
            continue
        for line in file.read_text().splitlines():
            match = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)", line.split("#")[0].strip())
            if not match or match[2].startswith("cdrom:") or match[3] not in mine or "main" not in match[4].split():
                continue
            signed = re.search(r"signed-by=(\S+)", match[1] or "")
            out.append(([match[2]], [match[3]], " " + signed[1].replace(",", " ") if signed else None))
    return out


class Mirror:
    """The machine's package mirror, used for other suites than the machine's own.

    A private APT directory (sources, lists, cache) below dest leaves the host's
    own lists alone; proxies and credentials come from the host's APT.
    """

    def __init__(self, dest):
        self.dest = pathlib.Path(dest)
        self.dir = self.dest / "apt"
        self.fetched = []  # (types, suite) whose lists have been fetched

    def options(self, private=True):
        opts = ["-qq", "-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=60"]
        if os.geteuid() == 0:
            opts += ["-o", "APT::Sandbox::User=root"]
        if private:
            opts += [
                "-o", "Dir::Etc::sourcelist=/dev/null",
                "-o", f"Dir::Etc::sourceparts={self.dir}/sources.d",
                "-o", f"Dir::State::lists={self.dir}/lists",
                "-o", f"Dir::Cache={self.dir}/cache",
                "-o", "Acquire::Languages=none",
                "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
                "-o", "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
            ]  # fmt: skip
        return opts

    def call(self, argv, cwd=None):
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        try:
            res = subprocess.run(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
            )
        except FileNotFoundError as err:
            raise SourceError(f"{argv[0]} is not installed: no APT on this machine") from err
        except subprocess.TimeoutExpired as err:
            raise SourceError(f"{argv[0]} gave no answer within 15 minutes") from err
        if res.returncode != 0:
            # Keep addresses out of the message: they are private to the machine.
            text = re.sub(r"\w+://\S+", "<mirror>", res.stderr).strip().splitlines()
            errors = [t for t in text if t.startswith("E:")] or text[-3:] or ["no message"]
            raise SourceError(f"{' '.join(argv[:1])} failed: " + " ".join(errors))
        return res.stdout

    def update(self, later=None, types="deb-src"):
        """Fetch the lists of SUITE; if a later suite is named, also those of its sources (deb: of its packages).

        Suites of earlier calls stay. Raises SourceError if a list cannot be fetched, and leaves that suite out.
        """
        wanted = [("deb deb-src", SUITE), *self.fetched[1:]]
        if later and (types, later) not in wanted:
            wanted.append((types, later))
        if wanted == self.fetched:
            return
        stanzas = host_stanzas()
        if not stanzas:
            raise SourceError("found no Debian archive with component main in the APT sources of this machine")
        uris, _, signed = stanzas[0]
        for sub in ("sources.d", "lists/partial", "cache/archives/partial"):
            (self.dir / sub).mkdir(parents=True, exist_ok=True)
        text = ""
        for kinds, suite in wanted:
            text += f"Types: {kinds}\nURIs: {' '.join(uris)}\nSuites: {suite}\nComponents: main\n"
            if signed:
                text += f"Signed-By:{signed}\n"
            text += "\n"
        (self.dir / "sources.d" / "itree.sources").write_text(text)
        self.call(["apt-get", *self.options(), "update"])
        self.fetched = wanted

    def versions(self, package):
        """{version: whether it comes from the private lists}; the host's own lists come first.

        If SUITE has no such package, the suites in KERNELS are asked, too.
        """
        found = dict.fromkeys(self._listed(package, private=False), False)
        self.update()
        if not self._listed(package, private=True):
            self._update_kernels()
        for version in self._listed(package, private=True):
            found.setdefault(version, True)
        return found

    def _update_kernels(self, package=None):
        """Fetch the lists of KERNELS; if a package is named, only until one of them has it. Returns what failed."""
        why = []
        for suite in KERNELS:
            try:
                self.update(suite, "deb")
            except SourceError as err:
                why.append(f"{suite}: {err}")
            if package and self._listed(package, private=True):
                break
        return why

    def download_version(self, package, version, private, into):
        """Download one version of a package into an empty directory; returns its path."""
        self.call(["apt-get", *self.options(private), "download", f"{package}={version}"], cwd=into)
        files = list(pathlib.Path(into).iterdir())
        if len(files) != 1:
            raise SourceError(f"apt-get download of {package} {version} left {len(files)} files")
        return files[0]

    def download(self, source):
        return self._tarball(source) if source.sha256 else self._package(source)

    def _addresses(self, source):
        """{file name: address} of all versions of a source package that the private lists have."""
        found = {}
        for version in self._listed(source.name, private=True, of_sources=True):
            argv = ["apt-get", *self.options(), "source", "--print-uris", "--only-source", f"{source.name}={version}"]
            found |= {name: uri for uri, name in re.findall(r"^'([^']+)' (\S+) ", self.call(argv), re.MULTILINE)}
        return found

    def _tarball(self, source):
        self.update()
        uris = self._addresses(source)
        for suite in LATER:
            if source.file in uris:
                break
            try:
                self.update(suite)
                uris |= self._addresses(source)
            except SourceError as err:
                print(f"fetch: cannot look for {source.file} in {suite}: {err}", file=sys.stderr)
        if source.file not in uris:
            raise SourceError(f"it offers {', '.join(sorted(uris)) or 'nothing'} for {source.name}")
        part = self.dest / f"{source.file}.part"
        self.call(["/usr/lib/apt/apt-helper", *self.options(), "download-file", uris[source.file], str(part)])
        path = self.dest / source.file
        part.replace(path)
        return path

    def _private_package(self, name, into):
        """Download the newest version of a package that SUITE has, or the first of the suites in KERNELS."""
        self.update()
        versions, why = self._listed(name, private=True), []
        if not versions:
            why = self._update_kernels(name)
            versions = self._listed(name, private=True)
        if not versions:
            raise SourceError("; ".join([f"no {name} in {SUITE}, {', '.join(KERNELS)}", *why]))
        # Name the version: by default APT takes nothing from suites like experimental.
        self.call(["apt-get", *self.options(), "download", f"{name}={versions[0]}"], cwd=into)

    def _listed(self, name, private, of_sources=False):
        """Versions of a package, or of a source package, in the private lists or the host's own, the newest first."""
        listed = self.call(["apt-cache", *self.options(private), "madison", name]).splitlines()
        rows = [[f.strip() for f in line.split("|")] for line in listed]
        return [r[1] for r in rows if len(r) == 3 and r[0] == name and r[2].endswith("Sources") == of_sources]

    def _package(self, source):
        # The host's own lists offer the newest point release. On a machine with
        # empty lists, or with another Debian, the private ones are used.
        # Download into a directory of its own, so that a truncated file never looks like a finished one.
        part = self.dir / "download"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            self.call(["apt-get", *self.options(private=False), "download", source.file], cwd=part)
        except SourceError:
            self._private_package(source.file, part)
        found = _candidates(source, part)
        if not found:
            raise SourceError(f"apt-get download left no {source.file} package")
        return found[0].replace(self.dest / found[0].name)
