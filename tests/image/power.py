# SPDX-License-Identifier: GPL-2.0-only
"""One life of the machine of test_power.py: from power-on to power-off, or to the cut.

Looks whether what was good is good, completes what was cut off, compares;
then begins a night's backup and resets the machine in the midst of it. With a
second disk the backup is made, and the power goes while it is copied there.
Run in the guest as root: power.py SHARE TURN MOMENT DISK [SECOND]. MOMENT: when the power
goes, 1 being the time that the run before it took; less than 0 for no cut.
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import stat
import subprocess
import sys
import time

COMMAND = pathlib.Path(__file__).resolve().parents[2] / "image" / "appliance" / "usr" / "bin" / "itree-backup"
VOLUME, COPY = pathlib.Path("/run/volume"), pathlib.Path("/run/copy")
TOP = pathlib.Path("/tmp/client")


def call(*argv, ok=(0,)):
    res = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)  # fmt: skip
    if res.returncode not in ok:
        sys.exit(f"{argv} ended with {res.returncode}:\n{res.stdout}")
    return res.stdout


def client(turn):
    """The mail spool as it is in that night: the same whenever it is asked for."""
    shutil.rmtree(TOP, ignore_errors=True)
    TOP.mkdir()
    for night in range(turn + 1):
        chance = random.Random(night)
        for n in range(400 if night == 0 else 120):
            path = TOP / f"{night}.{n}"
            path.write_bytes(chance.randbytes(chance.randrange(100, 20000)))
            os.utime(path, ns=(1_700_000_000_000_000_000 + night,) * 2)
        for path in chance.sample(sorted(TOP.iterdir()), 30):
            path.chmod(chance.choice((0o600, 0o640, 0o644)))
        for path in chance.sample(sorted(TOP.iterdir()), 10):
            path.unlink()


def manifest(top):
    """All that must not change in a tree, as one sum."""
    found = []
    for path in sorted(top.rglob("*")):
        got = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(got.st_mode) else b""
        found.append((str(path.relative_to(top)), got.st_mode, got.st_uid, got.st_mtime_ns * bool(data), data))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def good(volume=VOLUME):
    return sorted(p for p in (volume / "mx").iterdir() if p.name.endswith("Z")) if (volume / "mx").exists() else []


def status():
    """What the command says of itself."""
    return json.loads((VOLUME / "mx" / ".itree-backup" / "status.json").read_text())


def main():
    share, turn, moment = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    disk, second = sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else None
    known_file, conf = share / "known.json", pathlib.Path("/tmp/conf")
    known = json.loads(known_file.read_text()) if known_file.exists() else {}
    (conf / "hosts.d").mkdir(parents=True)
    (conf / "itree-backup.conf").write_text(f"[volume]\ndirectory = {VOLUME}\n[keep]\nlast = 4\ndaily = 0\nweekly = 0\n"
                                            "monthly = 0\n")  # fmt: skip
    (conf / "hosts.d" / "mx.conf").write_text("[host]\naddress = 127.0.0.1\nmethod = rsyncd\npaths = mail\n")
    pathlib.Path("/tmp/rsyncd.conf").write_text(f"use chroot = no\nuid = 0\ngid = 0\n[mail]\npath = {TOP}\n")
    call("ip", "link", "set", "lo", "up")
    call("rsync", "--daemon", "--address=127.0.0.1", "--config=/tmp/rsyncd.conf")
    VOLUME.mkdir()
    call("mount", "-o", "noatime,nodev,nosuid,noexec,errors=remount-ro", disk, VOLUME)
    backup = (COMMAND, "--config", conf)
    call(*backup, "init")
    if second:
        COPY.mkdir()
        call("mount", "-o", "noatime,nodev,nosuid,noexec,errors=remount-ro", second, COPY)
    # What was good before the cut is good after it, and no more than that has a good name.
    for path in good() + good(COPY):
        if path.name in known and known[path.name] != manifest(path):
            sys.exit(f"{path} was good before the power cut and is another now")
    names = {p.name for p in good()}
    left = len(list((VOLUME / "mx").glob("*.partial"))) if known else 0
    if known:
        result = call(*backup, "verify", "mx", "--all")
        if result.count(" 0 damaged, 0 without a recorded checksum") != len(names):
            sys.exit(result)
    # The night that was cut off is made up for, and is complete.
    client(turn)
    began = time.monotonic()
    call(*backup, "run", "mx")
    took = time.monotonic() - began
    newest = good()[-1]
    if manifest(newest) != manifest(TOP):
        sys.exit(f"{newest} is not what the client has")
    if list((VOLUME / "mx").glob("*.partial")):
        sys.exit("the run that completed left a partial snapshot")
    known = {p.name: manifest(p) for p in good()}
    if second:
        left = len(list((COPY / "mx").glob("*.partial")))
        began = time.monotonic()
        call(*backup, "sync", COPY, "--init")
        took = max(took, time.monotonic() - began)
        if {p.name: manifest(p) for p in good(COPY) if p.name in known} != known or list(
            (COPY / "mx").glob("*.partial")
        ):
            sys.exit(f"the copy has {good(COPY)} and is not what the volume has")
    known_file.write_text(json.dumps(known))
    (share / "left").write_text(str(left))
    os.sync()
    if moment < 0:
        call("umount", VOLUME, *([COPY] if second else []))
        return
    client(turn + 1)
    if second:
        call(*backup, "run", "mx")
        known_file.write_text(json.dumps({p.name: manifest(p) for p in good()}))
        os.sync()
    began = time.monotonic()
    proc = subprocess.Popen([str(a) for a in (*backup, *(("sync", COPY) if second else ("run", "mx")))])
    while proc.poll() is None and (
        time.monotonic() < began + moment * took or not (second or status()["pid"] == proc.pid)
    ):
        time.sleep(0.02)
    phase = "ended" if proc.poll() is not None else "copying" if second else status()["phase"]
    (share / "phase").write_text(f"{phase}\n{time.monotonic() - began:.1f}")
    # Nothing is written out. A kernel that is a program would begin anew with a reset: there it is switched off.
    pathlib.Path("/proc/sysrq-trigger").write_text("o" if "ubd" in disk else "b")
    time.sleep(60)
    sys.exit("the machine is still there")


if __name__ == "__main__":
    main()
