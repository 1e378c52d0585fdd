# SPDX-License-Identifier: GPL-2.0-only
"""The status page: the state of all hosts, and the files of their snapshots to browse and download.

A WSGI application for gunicorn (itree-backup-page.service). It answers only
GET and HEAD, writes nothing, and shows nothing without the password.
report.health() decides whether a host is well; the page only shows it.
"""

import contextlib
import datetime
import functools
import hashlib
import hmac
import itertools
import json
import os
import pathlib
import stat
import subprocess
import time
import urllib.parse

import flask
import flask_httpauth
import werkzeug.exceptions
import werkzeug.security

from . import config, outbox, quota, report
from . import store as store_
from . import sums as sums_
from .errors import BackupError
from .store import Tree
from .transfer import show

PAGE_NAMES = 1000  # names of a directory on one page
CHUNK = 1 << 20  # bytes of a download that are read at once
TREND = 60  # snapshots that a trend shows
USER = "admin"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Damaged(Exception):
    """A file is not what the client sent; if its download has begun, the connection breaks off."""


def create_app(conf=None):
    """The application. conf: configuration directory; default $ITREE_BACKUP_CONFIG or /etc/itree-backup."""
    conf = pathlib.Path(conf or os.environ.get("ITREE_BACKUP_CONFIG", config.DIRECTORY))
    app = flask.Flask(__name__)
    auth = flask_httpauth.HTTPBasicAuth(realm="itree-backup")
    secret, accepted = os.urandom(32), set()

    def password_hash():
        # systemd passes it as a credential; the unit cannot read the configuration.
        given = os.environ.get("CREDENTIALS_DIRECTORY")
        path = pathlib.Path(given) / "password" if given else conf / config.PAGE_PASSWORD
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            return ""

    @auth.verify_password
    def verify_password(user, password):
        wanted = password_hash()
        if not wanted or user != USER:
            return None
        # The hash is slow on purpose, so this process remembers a keyed digest of a password it has accepted.
        digest = hmac.digest(secret, f"{wanted}\0{password}".encode(), "sha256")
        if digest in accepted:
            return user
        if werkzeug.security.check_password_hash(wanted, password):
            accepted.add(digest)
            return user
        return None

    @app.before_request
    def only_reading():
        if flask.request.method not in ("GET", "HEAD"):
            raise werkzeug.exceptions.MethodNotAllowed(["GET", "HEAD"])

    # Every address needs the login, so that strangers do not even learn which pages exist.
    @app.before_request
    @auth.login_required
    def log_in():
        flask.g.base = config.settings(conf)

    @app.after_request
    def add_headers(response):
        response.headers.extend(HEADERS)
        return response

    @app.errorhandler(BackupError)
    def tell(err):
        return flask.render_template("error.html", title="Not available", message=str(err)), 503

    @app.errorhandler(Damaged)
    def tell_damaged(err):
        return flask.render_template("error.html", title="Damaged", message=str(err)), 409

    @app.errorhandler(werkzeug.exceptions.HTTPException)
    def tell_http(err):
        if err.code == 401 or flask.request.path.startswith("/static/"):
            return err
        return flask.render_template("error.html", title=err.name, message=err.description), err.code

    app.jinja_env.globals.update(show=show, age=report.age, link=link, chart=chart, hostname=os.uname().nodename)
    app.jinja_env.filters.update(bytes=quota.size_of, quota=quota.text_of, when=when)
    for rule, view in (("/", overview), ("/metrics", metrics), ("/status.json", status), ("/host/<name>", host),
                       ("/browse/<name>/<snapshot>/", browse), ("/browse/<name>/<snapshot>/<path:_path>", browse),
                       ("/file/<name>/<snapshot>/<path:_path>", download)):  # fmt: skip
        app.add_url_rule(rule, view.__name__, view)
    return app


def link(kind, name, snapshot, path=b""):
    """Address of a directory (kind browse) or file (kind file) of a snapshot; path: bytes."""
    return f"/{kind}/{urllib.parse.quote(name)}/{urllib.parse.quote(snapshot)}/{urllib.parse.quote_from_bytes(path)}"


def when(seconds):
    """A time for people, in UTC as the names of snapshots are."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def chart(numbers, width=240, height=40):
    """Points of an SVG polyline through these numbers, in an area of that size; its bottom is 0."""
    most = max(numbers) or 1
    step = width / max(len(numbers) - 1, 1)
    return " ".join(f"{n * step:.1f},{height - 2 - value / most * (height - 4):.1f}" for n, value in enumerate(numbers))


@functools.lru_cache(maxsize=1)
def _timers(_minute):
    argv = ["systemctl", "list-timers", "--all", "--output=json", "backup@*.timer"]
    try:
        res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True)
        rows = json.loads(res.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {
        row["unit"].removeprefix("backup@").removesuffix(".timer"): row["next"] / 1e6 for row in rows if row.get("next")
    }


def next_runs():
    """When each host is backed up next, by name, in seconds since the epoch; systemd is asked once a minute."""
    return _timers(int(time.time() / 60))


def overview():
    base = flask.g.base
    state = report.state(base)
    return flask.render_template(
        "overview.html", state=state, now=time.time(), days=report.forecast(state.healths, state.space, time.time()),
        next=next_runs(), trend=trend, pending=len(outbox.pending()),
    )  # fmt: skip


def trend(health):
    """(bytes, seconds) of the last snapshots of a host, oldest first."""
    records = [r for r in health.records.values() if "ended" in r and "started" in r][-TREND:]
    return [r.get("total_bytes", 0) for r in records], [r["ended"] - r["started"] for r in records]


def status():
    return flask.jsonify(report.state(flask.g.base).facts())


def metrics():
    base = flask.g.base
    text = report.metrics(report.healths(base, store_.stores(base))) + "# EOF\n"
    return flask.Response(text, content_type="application/openmetrics-text; version=1.0.0; charset=utf-8")


def store_named(name):
    """The Store of a host; aborts with 404 if there is no such host."""
    try:
        return store_.stores(flask.g.base, name)[0]
    except BackupError:
        flask.abort(404, f"There is no host {name}.")


def host(name):
    store = store_named(name)
    health = report.health(store, time.time(), flask.g.base.max_age, name in config.hosts(flask.g.base))
    sizes, seconds = trend(health)
    return flask.render_template("host.html", health=health, held=store.held(), next=next_runs().get(name), sizes=sizes,
                                 seconds=seconds)  # fmt: skip


def wanted(name, snapshot):
    """Return the Store and the path, as bytes, that a request names. Abort with 404 if there is no such snapshot."""
    store = store_named(name)
    if snapshot not in store.every():
        flask.abort(404, f"{name} has no snapshot {snapshot}.")
    # Flask has decoded the path as UTF-8, which names of files need not be.
    raw = b"".join(flask.request.environ["PATH_INFO"].encode("latin-1").split(b"/", 4)[4:])
    if b"\0" in raw:
        flask.abort(404, "No name has a zero byte in it.")
    return store, raw.strip(b"/")


def describe(dir_fd, path, name):
    """What the page shows of a name in an open directory: kind, size, time, target of a link; None if it is gone."""
    try:
        got = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(got.st_mode) else b""
    except OSError:
        return None
    return {"name": name, "path": os.path.join(path, name), "mode": stat.filemode(got.st_mode), "size": got.st_size,
            "time": got.st_mtime, "owner": f"{got.st_uid}:{got.st_gid}", "target": target,
            "directory": stat.S_ISDIR(got.st_mode), "regular": stat.S_ISREG(got.st_mode)}  # fmt: skip


def browse(name, snapshot, _path=""):
    store, path = wanted(name, snapshot)
    first = max(flask.request.args.get("from", 0, type=int), 0)
    with store.reading(snapshot), contextlib.closing(Tree(store.path / snapshot)) as tree:
        try:
            fd = tree.parent(path + b"/x" if path else b"x")[0]
            names = sorted(os.fsencode(n) for n in os.listdir(fd))
        except OSError:
            flask.abort(404, f"{snapshot} has no directory {show(path)}.")
        rows = [describe(fd, path, n) for n in names[first : first + PAGE_NAMES]]
    parts = path.split(b"/") if path else []
    above = [(part, link("browse", name, snapshot, b"/".join(parts[: n + 1]))) for n, part in enumerate(parts)]
    return flask.render_template("browse.html", store=store, snapshot=snapshot, path=path, above=above, first=first,
                                 rows=[r for r in rows if r], total=len(names), step=PAGE_NAMES)  # fmt: skip


def download(name, snapshot, _path):
    store, path = wanted(name, snapshot)
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.reading(snapshot))
        tree = stack.enter_context(contextlib.closing(Tree(store.path / snapshot)))
        try:
            fd = tree.open(path)
        except OSError:
            flask.abort(404, f"{snapshot} has no file {show(path)}.")
        stack.callback(os.close, fd)
        got = os.fstat(fd)
        if not stat.S_ISREG(got.st_mode):
            flask.abort(404, f"{show(path)} is not a regular file.")
        sums = stack.enter_context(contextlib.closing(sums_.Sums(store.meta / "sums.sqlite", writer=False)))
        known = sums.get(got.st_ino, sums_.generation(fd))
        if known and known[2]:
            flask.abort(409, f"{show(path)} was found damaged here. Look for it in another snapshot.")
        # The response outlives this function; the file and the snapshot stay open until it is sent.
        chunks = send(fd, got.st_size, known and known[0], stack.pop_all())
    # A small file is verified in full before anything is sent.
    response = flask.Response(itertools.chain([next(chunks, b"")], chunks), content_type="application/octet-stream")
    response.call_on_close(chunks.close)
    response.content_length = got.st_size
    last = path.rpartition(b"/")[2]
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in show(last))
    response.headers["Content-Disposition"] = (
        f"attachment; filename=\"{plain}\"; filename*=UTF-8''{urllib.parse.quote_from_bytes(last, safe='')}"
    )
    return response


def send(fd, size, md5, stack):
    """Yield a file's data. The last chunk waits for the checksum, so that browsers see damage as a broken download."""
    with stack:
        digest, left, held = hashlib.md5(usedforsecurity=False), size, b""
        while left and (chunk := os.read(fd, min(CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
            if held:
                yield held
            held = chunk
        if left or (md5 is not None and digest.digest() != md5):
            raise Damaged("This file is not what the client sent. Look for it in another snapshot; "
                          "'itree-backup verify' reads all of them.")  # fmt: skip
        if held:
            yield held


def set_password(conf, password):
    """Store the hash of a page password. Raises BackupError if it is too short."""
    if len(password) < 8:
        raise BackupError("the password of the page must have at least 8 characters")
    path = conf / config.PAGE_PASSWORD
    path.parent.mkdir(mode=0o700, exist_ok=True)
    store_.write_file(path, werkzeug.security.generate_password_hash(password) + "\n")
