# SPDX-License-Identifier: GPL-2.0-only
"""The command line of itree-backup."""

import argparse
import getpass
import json
import os
import pathlib
import signal
import sys

from . import (
    client,
    config,
    configcopy,
    console,
    hooks,
    outbox,
    quota,
    report,
    restore,
    retention,
    run,
    setup,
    sync,
    timelock,
)
from . import store as store_
from .errors import BUSY, DAMAGED, USAGE, BackupError, Interrupted
from .store import Store, stores

EPILOG = """snapshots are named by time (UTC); any unique beginning of a name will do, and `latest` is the
newest good one. Exit code: 0 done, 1 failed, 2 wrong usage or configuration, 3 busy, 4 no space, 5 client
gone, 6 refused (host key, login), 7 damaged files, 8 interrupted, 9 the client could not give some files. See
itree-backup(8), itree-backup.conf(5)."""


def parser():
    top = argparse.ArgumentParser(prog="itree-backup", description="Verified snapshots of hosts, made with rsync.",
                                  epilog=EPILOG)  # fmt: skip
    top.add_argument("--config", metavar="DIR", default=config.DIRECTORY, help="default: /etc/itree-backup")
    sub = top.add_subparsers(dest="what", required=True, metavar="COMMAND")

    def add(name, help_, host=True):
        made = sub.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".", epilog=EPILOG)
        if host:
            made.add_argument("host", metavar="HOST")
        return made

    def add_wait(made):
        # The rsync of a run that was killed may need a moment to end.
        made.add_argument("--wait", metavar="SECONDS", type=float, default=10.0,
                          help="how long to wait for other work on the host, such as a "
                          "verification (default %(default)g)")  # fmt: skip

    made = add("add", "add a host: confirm its key, try it, write its file, start its timer")
    made.add_argument("path", metavar="PATH", nargs="+",
                      help="what to back up: absolute paths, or MODULE[/PATH] with --method rsyncd")  # fmt: skip
    made.add_argument("--address", metavar="NAME", help="name or address to connect to (default: HOST)")
    made.add_argument("--port", metavar="N", type=int, default=0, help="default: 22, or 873 with --method rsyncd")
    made.add_argument("--user", metavar="NAME", help="user to log in as (default with ssh: root)")
    made.add_argument("--method", choices=("ssh", "rsyncd"), default="ssh", help="default: ssh")
    made.add_argument("--password-file", metavar="FILE", help="password for rsyncd")
    made.add_argument("--exclude", metavar="PATTERN", action="append", default=[], help="leave these out; repeatable")
    made.add_argument("--fingerprint", metavar="SHA256:...", help="accept this host key without asking")
    made.add_argument("--no-try", action="store_true", help="write the file even if the client is not reachable yet")
    made.add_argument("--no-timers", action="store_true", help="leave systemd alone")
    made = add("retire", "stop backing a host up; its snapshots stay")
    made.add_argument("--no-timers", action="store_true", help="leave systemd alone")
    made = add("forget", "remove all snapshots of a retired host")
    made.add_argument("--yes", action="store_true", help="remove them; without it, only list them")
    made = add("run", "back a host up: resume what was interrupted, fetch, verify, prune")
    add_wait(made)
    made = add("list", "list snapshots, or a directory of one", host=False)
    made.add_argument("host", metavar="HOST", nargs="?")
    made.add_argument("snapshot", metavar="SNAPSHOT", nargs="?")
    made.add_argument("path", metavar="PATH", nargs="?", default="/")
    made = add("restore", "copy files of a snapshot to a directory, or back to a client, and check them")
    made.add_argument("snapshot", metavar="SNAPSHOT")
    made.add_argument("path", metavar="PATH", nargs="*", help="default: everything")
    made.add_argument("--to", metavar="DEST", required=True,
                      help="a directory of this machine; HOST: for the same places on a client; HOST:DIR")  # fmt: skip
    made.add_argument("--overwrite", action="store_true", help="replace files that are there and differ")
    made = add("export", "write files of a snapshot to standard output as a tar stream")
    made.add_argument("snapshot", metavar="SNAPSHOT")
    made.add_argument("path", metavar="PATH", nargs="*", help="default: everything")
    made = add("verify", "read snapshots and compare each file with what the client sent", host=False)
    made.add_argument("host", metavar="HOST", nargs="?", help="default: all hosts, newest snapshot of each")
    made.add_argument("snapshot", metavar="SNAPSHOT", nargs="?", help="default: the newest")
    made.add_argument("--all", action="store_true", help="all snapshots; a file they share is read once")
    made.add_argument(
        "--rolling",
        action="store_true",
        help="the files of all snapshots that went unread longest; run daily, all within [verify] cycle_days",
    )
    made.add_argument("--adopt", action="store_true", help="accept files that have no recorded checksum")
    made = add("sums", "print the checksums that the client sent, in the format of md5sum(1)")
    made.add_argument("snapshot", metavar="SNAPSHOT")
    made = add("prune", "remove snapshots that retention does not keep")
    made.add_argument("-n", "--dry-run", action="store_true", help="list them, remove none")
    made.add_argument("--remove", metavar="SNAPSHOT", help="remove this one (its full name), whatever [keep] says")
    made = add("lock", "lock young snapshots against removal, unlock old ones ([lock])", host=False)
    made.add_argument("host", metavar="HOST", nargs="?", help="default: all hosts")
    add_wait(made)
    add("accept", "confirm that so many files were meant to vanish or change, and let pruning go on")
    add("discard", "remove what interrupted runs left")
    made = add("status", "show the state of all hosts; exit code 1 if one is not well", host=False)
    made.add_argument("host", metavar="HOST", nargs="?")
    made.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    made.add_argument("--beat", action="store_true", help="send [notify] heartbeat if all is well")
    made = add("notify", "report a host's last run, or the state of all hosts, by mail and webhook", host=False)
    made.add_argument("host", metavar="HOST", nargs="?")
    made.add_argument("--message", metavar="TEXT", help="send this text instead")
    made.add_argument("--pending", action="store_true", help="retry messages that could not be delivered")
    made.add_argument("--failed", action="store_true", help="for OnFailure=: report a failed unit, whatever its status")
    made = add("sync", "copy snapshots to a second volume, verified and hard linked as here", host=False)
    made.add_argument("dest", metavar="DIRECTORY", type=pathlib.Path, help="where the second volume is mounted")
    made.add_argument("host", metavar="HOST", nargs="*", help="default: all hosts")
    made.add_argument("--init", action="store_true", help="make the empty file system there a backup volume")
    made.add_argument("--prune", action="store_true", help="remove snapshots there that [keep] does not keep")
    made.add_argument("--bandwidth", metavar="KIB", type=int, default=0, help="limit in KiB a second")
    made = add("password", "set the password of the status page, and enable the page", host=False)
    made.add_argument("--no-timers", action="store_true", help="leave systemd alone")
    add("console", "show the appliance's addresses and the state of the hosts", host=False)
    made = add("setup", "install credentials, make the ssh key, and enable the hosts' timers", host=False)
    made.add_argument("--no-timers", action="store_true", help="leave systemd alone")
    made = add("init", "make the mounted volume the backup volume", host=False)
    made.add_argument("--no-mount", action="store_true", help="allow a directory of a larger file system")
    add_wait(add("prepare", "make the directory of a host, and set its quota (backup@.service does this)"))
    return top


def cmd_run(base, args):
    run.backup(base, config.host(base, args.host), Store(base, args.host), args.wait)


def cmd_list(base, args):
    if args.snapshot:
        store = stores(base, args.host)[0]
        restore.listing(store, store.find(args.snapshot), args.path)
        return
    wrong = []
    for store in stores(base, args.host):
        keep = None
        if store.name in config.hosts(base):
            try:
                keep = config.host(base, store.name).keep
            except BackupError as err:
                wrong.append(str(err))
        stay = retention.kept(store.snapshots(), keep) if keep else {}
        for name in store.with_gaps():
            stay[name] = [f"{store.record(name).get('gaps', '?')} gaps"]
        for name in store.every():
            record = store.record(name)
            notes = "damaged" if record.get("damaged") else ", ".join(stay.get(name, ["not kept"] if keep else []))
            if timelock.locked(store, name):
                notes = ", ".join(filter(None, (notes, "locked")))
            print(f"{store.name:20} {name:25}  {record.get('names', '?'):>9} names {record.get('new_files', '?'):>9} "
                  f"new {record.get('new_bytes', 0) >> 20:>8} MiB  {notes}")  # fmt: skip
        for name in store.names(".partial"):
            print(f"{store.name:20} {name}  interrupted")
    if wrong:
        raise BackupError("\n".join(wrong), USAGE)


def cmd_add(base, args):
    client.add(base, args)


def cmd_retire(base, args):
    client.retire(base, args.host, args.no_timers)


def cmd_forget(base, args):
    store = stores(base, args.host)[0]
    if store.name in config.hosts(base):
        raise BackupError(f"{store.name} is backed up: 'itree-backup retire {store.name}' comes first", USAGE)
    with store.lock():
        names = store.every()
        print(f"{store.name}: {'removing' if args.yes else 'would remove'} {len(names)} snapshots"
              + f", {names[0]} to {names[-1]}" * bool(names))  # fmt: skip
        if args.yes:
            timelock.refuse_locked(store, names)
            store.forget(lambda name: run.say(f"{store.name}: removed {name}"))
            report.unpublish(store)
            return
    raise BackupError(f"{store.name}: nothing was removed; --yes removes them for good", USAGE)


def cmd_restore(base, args):
    store = stores(base, args.host)[0]
    name = store.find(args.snapshot)
    to_client = restore.client_of(base, args.to)
    if to_client:
        right, unknown, kept = restore.to_client(base, store, name, args.path, *to_client, args.overwrite)
    else:
        right, unknown, kept = restore.restore(store, name, args.path, args.to, args.overwrite)
    print(f"{store.name} {name}: restored to {args.to}: {right} files compared and right" +
          f", {kept} were there already and are as they were" * bool(kept) +
          f", {unknown} could not be compared: they have no recorded checksum" * bool(unknown))  # fmt: skip


def cmd_export(base, args):
    store = stores(base, args.host)[0]
    if sys.stdout.isatty():
        raise BackupError("the tar stream goes to standard output, which is a terminal: redirect it", USAGE)
    restore.export(store, store.find(args.snapshot), args.path, sys.stdout.fileno())


def cmd_verify(base, args):
    wrong = unknown = 0
    busy = []
    if args.snapshot and args.rolling:
        raise BackupError("--rolling chooses the files itself: do not name a snapshot", USAGE)
    for store in stores(base, args.host):
        names = store.every()
        if args.snapshot or (names and not args.all):
            names = [store.find(args.snapshot)]
        if not names:
            print(f"{store.name}: there is no good snapshot yet")
            continue
        try:
            if args.rolling:
                found = run.verify_due(store, base.cycle)
            else:
                found = run.verify_host(store, names, args.adopt)
        except BackupError as err:
            if err.code != BUSY or args.host:
                raise
            # A busy host must not keep the others from being read.
            print(err, file=sys.stderr)
            busy.append(store.name)
            continue
        wrong, unknown = wrong + found.wrong, unknown + found.unknown
        for line in found.bad:
            print(f"{store.name}: {line}", file=sys.stderr)
    if wrong:
        raise BackupError(f"{wrong} files are not what the client sent (above). Other snapshots may have good "
                          "copies; check the disk with journalctl -k and smartctl -a", DAMAGED)  # fmt: skip
    if unknown:
        raise BackupError(f"{unknown} files have no recorded checksum, so they could not be compared; "
                          "--adopt accepts them as they are")  # fmt: skip
    if busy:
        raise BackupError(f"not verified, because other work was going on there: {', '.join(busy)}", BUSY)


def cmd_sums(base, args):
    store = stores(base, args.host)[0]
    unknown = restore.write_sums(store, store.find(args.snapshot), sys.stdout.buffer)
    if unknown:
        raise BackupError(f"{unknown} files have no recorded checksum: they are not in the list")


def cmd_prune(base, args):
    if args.remove:
        store = stores(base, args.host)[0]
        with store.lock():
            if args.remove not in store.every():
                raise BackupError(f"{store.name}: there is no snapshot with the full name '{args.remove}'")
            if store.snapshots() == [args.remove]:
                raise BackupError(f"{store.name}: {args.remove} is the only good snapshot; it is not removed", USAGE)
            timelock.refuse_locked(store, [args.remove])
            store.remove(args.remove)
            print(f"{store.name}: removed {args.remove}")
        return
    host, store = config.host(base, args.host), Store(base, args.host)
    if args.dry_run:
        for name in retention.doomed(store, host.keep):
            print(f"{store.name}: would remove {name}")
        return
    with store.lock():
        gone = retention.prune(store, host.keep, run.say)
        run.finish(store, {**store.status(), "prune_message": ""})
    print(f"{store.name}: {len(gone)} removed, {len(store.snapshots())} kept")


def cmd_lock(base, args):
    for store in stores(base, args.host):
        try:
            days = config.host(base, store.name).lock if store.name in config.hosts(base) else base.lock
        except BackupError as err:
            # The run has failed, and has said so.
            print(f"{err}\n{store.name}: locks stay as they are", file=sys.stderr)
            continue
        if store.path.is_dir():
            with store.lock(args.wait):
                timelock.settle(store, days, run.say)


def cmd_accept(base, args):
    store = stores(base, args.host)[0]
    with store.lock():
        why = store.held()
        store.hold("")
        run.finish(store, {**store.status(), "prune_message": ""})
    print(f"{store.name}: " + (f"accepted: {why}" if why else "nothing is held"))


def cmd_discard(base, args):
    store = stores(base, args.host)[0]
    with store.lock():
        store.finish_removals()
        for name in store.names(".partial"):
            store.remove(name, ".partial")
            print(f"{store.name}: removed what the run of {name} left")
        store.remove_parts()


def cmd_status(base, args):
    state = report.state(base, args.host)
    print(json.dumps(state.facts(), indent=1) if args.json else "\n".join(state.lines()))
    if state.well and args.beat and base.heartbeat:
        missed = outbox.beat(base.heartbeat)
        if missed:
            print(missed, file=sys.stderr)
    return 0 if state.well else 1


def cmd_notify(base, args):
    if args.pending:
        done, wrong = outbox.again(base)
        for line in done:
            print(f"delivered: {line}")
        if wrong:
            raise BackupError("\n".join(f"not delivered: {line}" for line in wrong))
        return
    if args.host:
        print(report.notify(Store(base, args.host), args.failed))
        return
    message, problems = args.message, {}
    if not message:
        try:
            state = report.state(base)
            message, problems = "\n".join(state.lines()), state.amounts()
        except (BackupError, OSError) as err:
            # A missing volume is itself what must be reported.
            message, problems = str(err), {str(err): 0}
    subject = "backups want attention"
    if args.failed:
        unit = report.failed_unit() or "a unit"
        message, problems = f"{unit} has failed.\n\n{message}", {unit: 0, **problems}
        # The watch runs every hour; a lasting problem must not send a message each time.
        if not outbox.news(problems):
            print(f"{subject}: nothing is worse than in the alarms of the last 12 hours")
            return
    print(report.tell(base, subject, message + "\n", {"message": message}, problems if args.failed else None))


def cmd_password(base, args):
    page = setup.page_module()
    if sys.stdin.isatty():
        password = getpass.getpass("New password of the page: ")
        if getpass.getpass("The same again: ") != password:
            raise BackupError("the two passwords differ; the old one stays", USAGE)
    else:
        password = sys.stdin.readline().rstrip("\n")
    page.set_password(base.conf, password)
    setup.make_certificate(base.conf)
    if not args.no_timers:
        setup.start_page()
    print("\n".join(console.page_lines(base.conf)))


def cmd_console(base, args):
    print("\n".join(console.lines(base)))


def cmd_setup(conf, args):
    wrong = setup.setup(conf)
    try:
        finish_setup(conf, args, wrong)
    except BackupError as err:
        wrong.append(str(err))
    setup.note_problems(conf, wrong)
    if wrong:
        raise BackupError("parts of the set-up failed:" + "".join(f"\n    {line}" for line in wrong), USAGE)


def finish_setup(conf, args, wrong):
    """Finish the set-up once the files are in place; adds problems to wrong. Raises BackupError."""
    base = config.settings(conf)
    if os.path.ismount(base.volume):
        cmd_init(base, argparse.Namespace(no_mount=False))
    else:
        print(f"{base.volume} is not mounted: backups fail until it is", file=sys.stderr)
    names = config.hosts(base)
    for name in names:
        try:
            host = config.host(base, name)
            if hooks.wanted(host):
                setup.make_key(base.conf, hooks.KEY)
                print(f"for {client.authorized_file(host)} of {name}, so that it runs [host] before and after:\n"
                      f"{hooks.authorized(base, host)}")  # fmt: skip
        except BackupError as err:
            wrong.append(str(err))
    if not args.no_timers:
        # A host with a bad file still gets its timer: its run fails, and says why.
        setup.timers(names)
        if (conf / config.PAGE_PASSWORD).exists():
            # At boot, systemd skipped the socket if a credential has only now brought the password.
            setup.start_page()
    print(f"hosts: {', '.join(names) or 'none yet'}")
    misnamed = config.misnamed(base)
    if misnamed:
        raise BackupError(f"{report.MISNAMED} {', '.join(misnamed)}. {config.NAME_RULE}", USAGE)


def cmd_init(base, args):
    made = store_.init(base, not args.no_mount)
    configcopy.make_directory(base)
    print(f"{base.volume}: {'is the backup volume now' if made else 'is the backup volume already'}")


def cmd_sync(base, args):
    sync.run(base, args.dest, args.host, args.bandwidth, args.init, args.prune)


def cmd_prepare(base, args):
    store = Store(base, args.host)
    store.prepare()
    if configcopy.save(base):
        print(f"{base.volume} holds a copy of {base.conf} now")
    try:
        limits = config.host(base, args.host).quota
    except BackupError:
        # The run will fail, and say why.
        return
    if not quota.in_force(store, limits):
        with store.lock(args.wait):
            quota.settle(store, limits)


def stop(number, _frame):
    raise Interrupted(number)


def main():
    args = parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    os.umask(0o077)
    if os.geteuid():
        print("itree-backup: clients' files keep their owners here, which needs root: use sudo", file=sys.stderr)
        return USAGE
    try:
        conf = pathlib.Path(args.config).absolute()
        if args.what == "setup":
            # Does not read the configuration first: setup may be what repairs it.
            return cmd_setup(conf, args) or 0
        base = config.settings(conf)
        return globals()[f"cmd_{args.what}"](base, args) or 0
    except BackupError as err:
        print(f"itree-backup {args.what}: {err}", file=sys.stderr)
        return err.code
    except OSError as err:
        print(f"itree-backup {args.what}: {err}", file=sys.stderr)
        return 1
