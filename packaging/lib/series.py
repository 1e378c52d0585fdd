# SPDX-License-Identifier: GPL-2.0-only
"""Mails for the projects that we patch, written from the patches and files that our builds lay over their sources.

upstream/series.toml of a project names each patch once, in the order of the mails:

    prefix = "PATCH rsync"      # in the subjects; default: PATCH
    to = ["list@example.org"]   # where the mails go

    [[fixes]]                   # apply to the release as it is
    patch = "0001-....patch"    # of the project's build, or in upstream/ if only the mails have it
    check = "script"            # fails with the release and succeeds with the patch; or
    fails = "text"              # how to see the fault where a script would need a machine, a clock or a debugger
    needs = ["root", "fuse"]    # what the script needs

    [[feature]]                 # apply after the fixes
    patch = "message.txt"       # a message for files without a diff
    files = ["dir/*.c"]         # files of ours that come with it
"""

import dataclasses
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import textwrap
import tomllib

import publisher
import treebuild as tb

HALVES = ("fixes", "feature")
MAIL_BYTES = 80_000
COLUMNS = 80
KEYS = {"patch", "files", "fails", "check", "needs"}


@dataclasses.dataclass(frozen=True)
class Project:
    """A project that we patch: its source, and what our build lays over it."""

    name: str
    release: str  # as messages call it, such as e2fsprogs 1.47.4
    upstream: pathlib.Path  # series.toml, cover letters and what only the mails have
    patches: list
    overlay: dict  # {path in the tree: our file}
    unpack: object  # a function (paths, directory): those files of the pristine source, where it has them
    parts: tuple = ()  # subdirectories of upstream/ to look into first
    extra: dict = dataclasses.field(default_factory=dict)  # {path: our file} that only the mails have
    elsewhere: frozenset = frozenset()  # names of patches and files that only another release of the project needs


@dataclasses.dataclass(frozen=True)
class Step:
    """One mail."""

    half: str
    patch: pathlib.Path
    files: dict  # {path in the tree: our file}
    fails: str
    check: str
    ours: bool  # our build has it, too

    @property
    def targets(self):
        return tb.patch_targets(self.patch) if self.patch.suffix == ".patch" else set()


def git(repo, *argv, **kwargs):
    # The user's own settings (hooks, signing, prefixes) stay out of it.
    who = publisher.read()
    env = {**os.environ, "GIT_COMMITTER_NAME": who.name, "GIT_COMMITTER_EMAIL": who.email,
           "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}  # fmt: skip
    cmd = ["git", "-C", str(repo), *argv]
    res = subprocess.run(cmd, capture_output=True, text=True, check=False, env=env, **kwargs)
    if res.returncode:
        raise tb.BuildError(f"git {argv[0]} failed in {repo}:\n{res.stderr.strip()}")
    return res.stdout


def read_list(project):
    """Return the parsed series.toml of a project. Raises BuildError if it is not such a list."""
    path = project.upstream / "series.toml"
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as err:
        raise tb.BuildError(f"cannot read {path}: {err}") from err
    for half in HALVES:
        for entry in table.setdefault(half, []):
            if "patch" not in entry or set(entry) - KEYS:
                raise tb.BuildError(f"{path}, {half}: {entry} needs `patch` and may have {', '.join(sorted(KEYS))}")
            if half == "fixes" and not (entry.get("check", "") + entry.get("fails", "")).strip():
                raise tb.BuildError(f"{path}: the fix {entry['patch']} needs `check` or `fails`: a way to see it fail")
    return table


def read_steps(project):
    """Return the mails of a project in order. Raises BuildError unless they name each patch and file of ours once."""
    path = project.upstream / "series.toml"
    ours = {p.name: p for p in project.patches}
    have = {**project.overlay, **project.extra}
    steps, named = [], []
    for half, entry in [(half, e) for half, es in read_list(project).items() if half in HALVES for e in es]:
        name = entry["patch"]
        places = [ours.get(name), *(project.upstream / p / name for p in (*project.parts, "."))]
        patch = next((p for p in places if p and p.is_file()), None)
        if patch is None and name not in project.elsewhere:
            raise tb.BuildError(f"{path}: there is no patch {name} in the project's patches or in {project.upstream}")
        files = []
        for pattern in entry.get("files", []):
            hits = [f for f in have if fnmatch.fnmatchcase(f, pattern)]
            if not hits and pattern not in project.elsewhere:
                raise tb.BuildError(f"{path}, {name}: no file of ours is {pattern}")
            files += sorted(hits)
        if patch is not None:
            named += [name, *files]
            fault = entry.get("fails", ""), entry.get("check", "")
            steps.append(Step(half, patch, {f: have[f] for f in files}, *fault, name in ours))
    missing = [n for n in (*ours, *have) if n not in named]
    if missing:
        raise tb.BuildError(f"{path} does not name {', '.join(missing)}")
    twice = sorted({n for n in named if named.count(n) > 1})
    if twice:
        raise tb.BuildError(f"{path} names twice: {', '.join(twice)}")
    return steps


def header_of(patch):
    """Return author date and commit message of a patch in git's mail form."""
    head = patch.read_text(errors="surrogateescape").split("\n---\n")[0]
    date = re.search(r"^Date: (.*)$", head, re.M)[1]
    subject, body = re.search(r"^Subject: \[PATCH\] (.*?)\n\n(.*)", head, re.S | re.M).groups()
    return date, " ".join(subject.split()) + "\n\n" + body.strip() + "\n"


def message_of(step, release):
    """Return author date and commit message of a mail: the patch's own, and for a fix how to see it fail."""
    date, message = header_of(step.patch)
    how = ""
    if step.fails:
        how += f"\n\nTo see it fail with {release}:\n\n{step.fails.strip()}"
    if step.check:
        how += f"\n\nIn an empty directory, `sh -e` fails on this script with {release},\nand succeeds with the patch:"
        how += "\n\n" + textwrap.indent(step.check.strip(), "    ")
    body, sign, who = message.partition("\nSigned-off-by:")
    return date, f"{body.rstrip()}{how}\n{sign}{who}"


def released(steps):
    """Return the paths that the mails change and do not add: the release must have them."""
    added = set()
    for step in steps:
        if step.targets:
            added |= set(re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", step.patch.read_text(errors="replace"), re.M))
    return sorted({t for s in steps for t in s.targets} - added)


def put(source, dest):
    dest.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, dest)


def make_repository(project, steps, scratch):
    """Commit the files that the series touches, then each mail on top.

    Returns the repository and {half: the commit it begins at}. The fixes apply to the release without anything else,
    for nothing else is there; git apply knows no fuzz.
    """
    repo, pristine = scratch / project.name, scratch / "pristine"
    pristine.mkdir(parents=True)
    wanted = released(steps)
    project.unpack(wanted, pristine)
    repo.mkdir()
    git(repo, "init", "-q", "-b", "itree")
    for rel in wanted:
        if not (pristine / rel).is_file():
            raise tb.BuildError(f"{project.release} has no {rel}, which a patch changes")
        put(pristine / rel, repo / rel)
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-q", "-m", project.release, "--author", publisher.read().who)
    begins = {}
    for step in steps:
        begins.setdefault(step.half, git(repo, "rev-parse", "HEAD").strip())
        for rel, source in step.files.items():
            put(source, repo / rel)
        date, message = message_of(step, project.release)
        if step.targets:
            try:
                git(repo, "apply", "--whitespace=nowarn", str(step.patch))
            except tb.BuildError as err:
                raise tb.BuildError(f"{step.patch.name} does not apply among the {step.half}: {err}") from err
        git(repo, "add", "-A", "-f")
        git(repo, "commit", "-q", "-F", "-", "--author", publisher.read().who, "--date", date, input=message)
    return repo, begins


def compare(project, steps, repo, scratch):
    """Check that the mails end in the tree that our build makes. Returns the number of files compared."""
    tree = tb.Tree("series", scratch / "laid")
    tree.unpack(project.release, lambda dest: shutil.copytree(scratch / "pristine", dest, dirs_exist_ok=True))
    tree.lay(project.overlay, project.patches, project.release)
    only = {f for s in steps if not s.ours for f in s.targets} | set(project.extra)
    built = set(project.overlay) | {t for p in project.patches for t in tb.patch_targets(p)}
    if only & built:
        raise tb.BuildError(f"{project.upstream}: our build has files that are to be for mails only: {only & built}")
    sent = {str(p.relative_to(repo)) for p in repo.rglob("*") if p.is_file() and ".git" not in p.parts} - only
    for rel in sorted(sent | built):
        mine, theirs = repo / rel, tree.tree / rel
        if mine.exists() != theirs.exists() or (mine.exists() and mine.read_bytes() != theirs.read_bytes()):
            raise tb.BuildError(f"{project.name}: after the mails, {rel} is not what our build makes; compare the "
                                f"order of {project.upstream}/series.toml and of patches/series")  # fmt: skip
    return len(sent | built)


def cover(project, steps, half, path):
    """Fill in a cover letter. In its text, @0003@ is the number of the mail whose patch has a name that begins so."""
    source = project.upstream / f"{half}.txt"
    if not source.is_file():
        raise tb.BuildError(f"{source} is missing: the cover letter of the {half}")

    def number(match):
        hits = [n for n, step in enumerate(steps, 1) if step.patch.name.startswith(match[1])]
        if len(hits) != 1:
            raise tb.BuildError(f"{source}: {match[0]} names {len(hits)} mails of the {half}, not one")
        return str(hits[0])

    subject, body = re.sub(r"@([\w-]+)@", number, source.read_text()).split("\n\n", 2)[1:]
    text = path.read_text(errors="surrogateescape").replace("*** SUBJECT HERE ***", subject.strip())
    path.write_text(text.replace("*** BLURB HERE ***", body.strip()), errors="surrogateescape")


def check_mail(path):
    """Raise BuildError if a list would not take a mail."""
    if path.stat().st_size > MAIL_BYTES:
        raise tb.BuildError(f"{path} has {path.stat().st_size:,} bytes; lists take {MAIL_BYTES:,}: split it")
    text = path.read_text(errors="surrogateescape").partition("\n\n")[2]
    for line in re.split(r"^(?:---| .* \| +\d+ .*)$", text, maxsplit=1, flags=re.M)[0].splitlines():
        if len(line.expandtabs()) > COLUMNS:
            raise tb.BuildError(f"{path}: a line of the message is longer than {COLUMNS} columns: {line}")


def write_mails(project, steps, repo, begins, out, scratch):
    """Write the mails of each half into out/HALF, in place of those of an earlier run, if all of them are good."""
    table = read_list(project)
    opts = ["--cover-letter", "--zero-commit", "--no-signature", "--binary", "--stat=72", "-q"]
    opts += [f"--subject-prefix={table.get('prefix', 'PATCH')}", *(f"--to={to}" for to in table.get("to", []))]
    made = {half: [s for s in steps if s.half == half] for half in HALVES}
    for half, mine in made.items():
        if mine:
            end = begins["feature"] if half == "fixes" and "feature" in begins else "HEAD"
            git(repo, "format-patch", *opts, "-o", str(scratch / half), f"{begins[half]}..{end}")
            cover(project, mine, half, scratch / half / "0000-cover-letter.patch")
            for mail in sorted((scratch / half).iterdir()):
                check_mail(mail)
    for half, mine in made.items():
        shutil.rmtree(out / half, ignore_errors=True)
        if mine:
            shutil.copytree(scratch / half, out / half)
            tb.say("series", f"{project.name}: {len(mine)} patches and a cover letter in {out / half}")


def write(project, out, scratch):
    """Write and check the mails of a project. Returns its steps and the repository."""
    for half in (d for d in out.glob("*") if d.is_dir()):
        if half.name not in HALVES or any(not f.name.endswith(".patch") for f in half.iterdir()):
            raise tb.BuildError(f"--out {out}: {half.name} holds other files than patches; name an empty directory")
    if any(f.is_file() for f in out.glob("*")):
        raise tb.BuildError(f"--out {out}: holds other files than patches; name an empty or a new directory")
    steps = read_steps(project)
    repo, begins = make_repository(project, steps, scratch)
    number = compare(project, steps, repo, scratch)
    write_mails(project, steps, repo, begins, out, scratch)
    tb.say("series", f"{project.name}: {number} files are what our build makes of {project.release}")
    return steps, repo


def walk(project, steps, repo, tree, compile_step):
    """Lay the files as they are after each mail over a tree, and call compile_step(number, step) there."""
    last = git(repo, "rev-parse", "HEAD").strip()
    commits = git(repo, "rev-list", "--reverse", last).split()[1:]
    ours = {f for s in steps for f in (*s.files, *s.targets)}
    for number, (commit, step) in enumerate(zip(commits, steps, strict=True), 1):
        git(repo, "checkout", "-q", commit)
        for rel in sorted(ours):
            have, want = tree / rel, repo / rel
            if not want.exists():
                have.unlink(missing_ok=True)
            elif not have.exists() or have.read_bytes() != want.read_bytes():
                put(want, have)
        compile_step(number, step)
        tb.say("series", f"{project.name}: {number}/{len(steps)} builds: {step.patch.name}")
    git(repo, "checkout", "-q", last)
