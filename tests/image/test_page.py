# SPDX-License-Identifier: GPL-2.0-only
"""The status page, served as its unit serves it: what it shows, and what it never does."""

import base64
import html
import http.client
import json
import os
import re
import ssl
import subprocess
import time
import urllib.parse

import pytest
from conftest import APPLIANCE, fill, maildir, port, run, state, wait_for_port

PASSWORD = "correct horse"
# The rights of itree-backup-page.service.
RIGHTS = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
          "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
          "--bounding-set=-all,+dac_read_search"]  # fmt: skip


class Page:
    """gunicorn with the page of an appliance."""

    def __init__(self, appliance):
        self.appliance, self.port = appliance, port()
        run(*appliance.argv("password", "--no-timers"), input_=PASSWORD + "\n")
        page = appliance.conf / "page"
        self.log = appliance.top / "page.log"
        argv = [*RIGHTS, "/usr/bin/gunicorn", f"--bind=127.0.0.1:{self.port}", f"--certfile={page}/cert.pem",
                f"--keyfile={page}/key.pem", "--threads=8", "--graceful-timeout=3",
                f"--pythonpath={APPLIANCE}/usr/lib/itree-backup", "itree_backup.page:create_app()"]  # fmt: skip
        env = {"PATH": "/usr/bin:/bin", "ITREE_BACKUP_CONFIG": str(appliance.conf), "PYTHONDONTWRITEBYTECODE": "1",
               "STATE_DIRECTORY": f"{appliance.top}/state", "CREDENTIALS_DIRECTORY": str(page)}  # fmt: skip
        with open(self.log, "ab") as out:
            self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                                         cwd="/", start_new_session=True)  # fmt: skip
        wait_for_port(self.port, self.proc, self.log)

    def ask(self, path, method="GET", password=PASSWORD, user="admin"):
        """(status, headers, body) of a request; path as it goes over the line."""
        context = ssl.create_default_context(cafile=self.appliance.conf / "page" / "cert.pem")
        # The certificate is for the host's name.
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)
        headers = {}
        if password is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        try:
            connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
            for key, value in headers.items():
                connection.putheader(key, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def text(self, path, status=200):
        code, _, body = self.ask(path)
        assert code == status, body.decode()
        return body.decode()

    def close(self):
        self.proc.terminate()
        self.proc.wait(30)


@pytest.fixture
def page(appliance):
    one = Page(appliance)
    yield one
    one.close()


@pytest.fixture
def mx1(appliance, tmp_path):
    """A host with two snapshots; the client's directory."""
    top = tmp_path / "client"
    maildir(top / "mail", 20)
    fill(top, "etc")
    with open(os.path.join(os.fsencode(top), b"etc", b"caf\xe9 & <b>.txt"), "wb") as handle:
        handle.write(b"of a name that is no UTF-8\n")
    (top / "etc" / "link").symlink_to("/etc/shadow")
    (top / "etc" / "above").symlink_to("../../../../..")
    (top / "secret").write_text("root only\n")
    (top / "secret").chmod(0o600)
    number = appliance.servers.rsync(all=top)
    appliance.host("mx1", "rsyncd", number, "all")
    appliance("run", "mx1")
    appliance("run", "mx1")
    return top


def crawl(page):
    """Follow all links from the first page on; {address: (status, body)}."""
    seen, todo = {}, ["/"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        code, headers, body = page.ask(path)
        seen[path] = (code, body)
        if headers.get_content_type() == "text/html":
            found = re.findall(r'(?:href|src)="([^"]*)"', body.decode())
            todo += [urllib.parse.urljoin(path, one.replace("&amp;", "&")) for one in found]
    return seen


def test_everything_can_be_reached(page, mx1):
    """Each file of each snapshot by following links; those of odd names, too, and each as it is."""
    seen = crawl(page)
    assert {code for code, _ in seen.values()} == {200}
    snapshots = [s.name for s in page.appliance.good("mx1")]
    for path in (p for p in mx1.rglob("*") if p.is_file() and not p.is_symlink()):
        relative = urllib.parse.quote_from_bytes(os.fsencode(path.relative_to(mx1)))
        for name in snapshots:
            assert seen[f"/file/mx1/{name}/{relative}"][1] == path.read_bytes()
    listed = seen[f"/browse/mx1/{snapshots[0]}/etc"][1].decode()
    assert "caf\\xe9 &amp; &lt;b&gt;.txt" in listed and "<b>" not in listed
    assert "→ /etc/shadow" in listed


def test_nothing_without_the_password(page, mx1):
    paths = list(crawl(page))
    assert len(paths) > 20
    for path in [*paths, "/no/such/page", "/host/none", "/static/page.css", "/static/../page.py"]:
        # A wrong password takes the page some time, as it is to take who tries many.
        wrong = (("admin", "wrong"), ("admin", ""), ("root", PASSWORD)) if path in paths[:6] else ()
        for user, password in ((None, None), *wrong):
            code, _, body = page.ask(path, password=password, user=user)
            assert code == 401 and b"mx1" not in body, path


def test_no_request_changes_anything(page, mx1):
    """Every method on every address; volume, configuration and state stay, down to times."""
    paths = list(crawl(page))
    roots = (page.appliance.volume, page.appliance.conf, page.appliance.top / "state")
    before = [state(root) for root in roots]
    for path in paths:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"):
            assert page.ask(path, method)[0] == 405
        page.ask(path, "HEAD")
    assert [state(root) for root in roots] == before


OUTSIDE = (
    "/../../../../etc/itree-backup.conf", "/%2e%2e/%2e%2e/.itree-backup/status.json", "/..%2f..%2f.itree-backup/x",
    "/etc/../../../../../../etc/passwd", "/etc/link", "/etc/above/etc/passwd", "/etc/above", "//etc/passwd", "/.",
    "/etc/.", "/etc/%00", "/etc/file/x",
)  # fmt: skip


def test_no_path_leaves_the_snapshot(page, mx1):
    name = page.appliance.good("mx1")[0].name
    for tail in OUTSIDE:
        for kind in ("file", "browse"):
            code, _, body = page.ask(f"/{kind}/mx1/{name}{tail}")
            assert code in (404, 400, 308) or (kind, code) == ("browse", 200), (kind, tail, body)
            assert b"[volume]" not in body and b"root:" not in body, (kind, tail, body)


MISSING = ("/host/..", "/host/.itree-backup-volume", "/host/none", "/host/a%2fb", "/browse/mx1/latest/", "/nothing",
           "/browse/mx1/.itree-backup/", "/browse/mx1/2026/", "/browse/../mx1/",
           "/file/mx1/.itree-backup/status.json")  # fmt: skip


def test_what_is_not_there(page, mx1):
    for path in MISSING:
        code, _, body = page.ask(path)
        assert code == 404 and b"<h1>Not Found</h1>" in body, path


def test_what_is_wrong_is_shown(page, mx1, appliance):
    (mx1 / "large").write_bytes(bytes(5 << 20))
    appliance("run", "mx1")
    assert "All hosts are well" in page.text("/")
    name = appliance.good("mx1")[-1].name
    for victim in (appliance.good("mx1")[-1] / "etc" / "file", appliance.good("mx1")[-1] / "large"):
        got = victim.stat()
        with open(victim, "r+b") as handle:
            handle.write(b"rotten")
        os.utime(victim, ns=(got.st_atime_ns, got.st_mtime_ns))
    # Nothing knows it yet. The download itself finds it, for the large file when most of it has been sent.
    assert "is not what the client sent" in page.text(f"/file/mx1/{name}/etc/file", 409)
    with pytest.raises(http.client.IncompleteRead):
        page.ask(f"/file/mx1/{name}/large")
    appliance("verify", "mx1", ok=(7,))
    text = page.text("/")
    assert "1 of 1 hosts needs attention" in text and "2 damaged files" in text
    assert "2 damaged" in page.text("/host/mx1") and "etc/file: is not what the client sent" in page.text("/host/mx1")
    assert "Look for it in another snapshot" in page.text(f"/file/mx1/{name}/etc/file", 409)
    (appliance.conf / "hosts.d" / "no good.conf").write_text("")
    assert "not backed up, because the file name" in page.text("/")


def test_status_and_page_agree(page, mx1, appliance):
    """The page decides nothing itself: what it says of hosts is what status says."""
    appliance.servers.kill("rsync")
    appliance("run", "mx1", ok=(5,))
    (appliance.conf / "hosts.d" / "no good.conf").write_text("")
    appliance.settings("[status]\nwarn_free_percent = 90\n[quota]\nsize = 0\n")
    (appliance.volume / "ballast").write_bytes(bytes(64 << 20))
    output = json.loads(appliance("status", "--json", ok=(1,)))
    shown = json.loads(page.text("/status.json"))
    for one in (output, shown):
        for number in ("free_bytes", "free_percent", "free_inodes_percent"):
            one.pop(number)
    assert shown == output
    assert not output["well"] and not output["hosts"]["mx1"]["well"]
    lines = [*output["problems"], *output["hosts"]["mx1"]["problems"]]
    assert len(output["problems"]) == 2 and "warn_free_percent" in output["problems"][1]
    where = {"page": html.unescape(page.text("/")), "status": appliance("status", ok=(1,)),
             "console": appliance("console")}  # fmt: skip
    assert not [(place, line) for place, text in where.items() for line in lines[:3] if line not in text]
    text = page.text("/metrics")
    assert text.endswith("# EOF\n") and 'itree_backup_last_run_success{host="mx1"} 0' in text
    assert text.count("# TYPE itree_backup_snapshots gauge") == 1
    assert 'itree_backup_snapshots{host="mx1"} 2' in text


def test_no_hosts_yet(page):
    text = page.text("/")
    assert "No hosts yet" in text and "itree-backup add HOST PATH" in text


def test_volume_that_is_not_there(page, mx1, appliance):
    (appliance.volume / ".itree-backup-volume").unlink()
    assert "is not a backup volume" in page.text("/", 503)


def test_a_directory_of_many_names(page, mx1, appliance):
    name = appliance.good("mx1")[0]
    for n in range(2500):
        (name / "etc" / f"n{n:04}").touch()
    text = page.text(f"/browse/mx1/{name.name}/etc?from=1000")
    assert "2504 names, 1001 to 2000" in text and text.count("download>") == 1000


def test_200_hosts_and_3000_snapshots(appliance, make_appliance):
    """Each record is read once for the page, and once for status, however much is drawn from it."""
    one = make_appliance(size=512, inodes=60000)
    for n in range(200):
        name = f"host{n:03}"
        one.host(name, "rsyncd", 1, "all")
        meta = one.volume / name / ".itree-backup"
        meta.mkdir(parents=True)
        for day in range(15):
            snapshot = f"2026-11-{day + 1:02}T02-00-00Z"
            (one.volume / name / snapshot).mkdir()
            started = 1_793_000_000 + day * 86400
            record = {"name": snapshot, "started": started, "ended": started + 600 + n, "names": 10000,
                      "total_bytes": 10**9 + day * 10**7, "free_bytes": 10**12 - day * 10**10, "gaps": 0}  # fmt: skip
            (meta / f"{snapshot}.json").write_text(json.dumps(record))
        status = {"state": "ok", "last_good": snapshot, "last_good_time": int(time.time()) - 3600, "message": ""}
        (meta / "status.json").write_text(json.dumps(status))
    log = one.top / "opens"
    run("strace", "-f", "-e", "trace=openat", "-o", log, *one.argv("status"), ok=(0, 1))
    opens = re.findall(r'/(\w+)/\.itree-backup/([\w-]+)\.json"', log.read_text())
    assert len(opens) == 200 * 16 and len(set(opens)) == len(opens)
    page = Page(one)
    try:
        started = time.monotonic()
        text = page.text("/")
        print(f"page of 200 hosts and 3,000 snapshots: {time.monotonic() - started:.2f} s")
        assert "All hosts are well" in text and text.count("<polyline") == 400
    finally:
        page.close()
    started = time.monotonic()
    one("status")
    print(f"status of them: {time.monotonic() - started:.2f} s")


def test_password(appliance):
    output = run(*appliance.argv("password", "--no-timers"), input_="short\n", ok=(1,))[1]
    assert "at least 8 characters" in output
    assert "off, until it has a password" in appliance("console")
    output = run(*appliance.argv("password", "--no-timers"), input_="long enough\n")[1]
    assert "https://" in output or "no network yet" in output
    assert re.search(r"SHA-256 ([0-9A-F]{2}:){31}[0-9A-F]{2}", output)
    for path in (appliance.conf / "page").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert "long enough" not in (appliance.conf / "page" / "password").read_text()
    (appliance.conf / "page" / "cert.pem").unlink()
    output = appliance("console")
    assert "has no usable certificate" in output and "address: " in output and "no hosts yet" in output


def test_console(appliance, mx1):
    assert "hosts:        1 of 1 well" in appliance("console")
    appliance.servers.kill("rsync")
    appliance("run", "mx1", ok=(5,))
    output = appliance("console")
    assert "hosts:        0 of 1 well:" in output and "mx1: mx1 (127.0.0.1): no connection" in output
