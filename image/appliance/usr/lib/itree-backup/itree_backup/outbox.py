# SPDX-License-Identifier: GPL-2.0-only
"""Messages are kept until they have been delivered: a webhook that answers 503 once must not lose an alarm."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request

from .store import read_json, state_directory, write_file

MOST = 1000  # messages kept; beyond that, the oldest are dropped
AGAIN = 12 * 3600  # seconds before an alarm reports the same problem again
SENT = "sent.json"


def directory():
    """Where messages wait."""
    return state_directory() / "outbox"


def reported(now):
    """The problems that were reported within AGAIN seconds before now: {kind: [time, amount]}."""
    sent = read_json(directory() / SENT)
    return {kind: one for kind, one in sent.items() if isinstance(one, list) and now - AGAIN < one[0] <= now}


def news(problems):
    """Return the kinds of problems that no recent alarm has reported, or that have grown since.

    problems: {kind: amount}. An alarm that waits for delivery counts, too: it is not lost.
    """
    now, known = time.time(), {}
    waiting = [read_json(path) for path in pending()]
    for kind, (_, amount) in reported(now).items():
        known[kind] = amount
    for message in waiting:
        if now - AGAIN < message.get("at", 0) <= now:
            for kind, amount in message.get("problems", {}).items():
                known[kind] = max(amount, known.get(kind, amount))
    return [kind for kind, amount in problems.items() if kind not in known or amount > known[kind]]


def note(problems):
    """Note that an alarm about these problems, as in news(), has been delivered now."""
    now = time.time()
    try:
        directory().mkdir(parents=True, exist_ok=True)
        sent = {**reported(now), **{kind: [now, amount] for kind, amount in problems.items()}}
        write_file(directory() / SENT, json.dumps(sent) + "\n")
    except OSError as err:
        # The alarm has been delivered. It will be sent again, which is better than none.
        print(f"{directory() / SENT}: cannot note what was reported: {err.strerror}", file=sys.stderr)


def by_mail(base, message):
    mail = (f"To: {base.mail_to}\nSubject: {message['subject']}\nAuto-Submitted: auto-generated\n"
            f"Content-Type: text/plain; charset=utf-8\n\n{message['text']}")  # fmt: skip
    res = subprocess.run(["/usr/sbin/sendmail", "-t", "-oi"], input=mail.encode(errors="backslashreplace"),
                         capture_output=True, timeout=120, check=False)  # fmt: skip
    if res.returncode:
        raise OSError(res.stderr.decode(errors="replace").strip() or f"sendmail ended with {res.returncode}")
    return f"mail to {base.mail_to}"


def by_webhook(base, message):
    body = json.dumps({"subject": message["subject"], **message["facts"]}).encode()
    request = urllib.request.Request(base.webhook, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return f"webhook ({answer.status})"


def by_apprise(base, message):
    """Send by all services of [notify] apprise. Their addresses hold passwords, so apprise reads them from a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as listed:  # mode 0600; the suffix says that it is text
        listed.write("".join(f"{address}\n" for address in base.apprise))
        listed.flush()
        argv = ["apprise", "--config", listed.name, "--title", message["subject"], "--body", message["text"]]
        res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                             timeout=120, check=False)  # fmt: skip
    if res.returncode:
        lines = (res.stderr or res.stdout).strip().splitlines()
        raise OSError(lines[-1] if lines else f"apprise ended with {res.returncode}")
    return f"apprise ({len(base.apprise)} services)"


WAYS = {"mail": (by_mail, lambda base: base.mail_to), "webhook": (by_webhook, lambda base: base.webhook),
        "apprise": (by_apprise, lambda base: base.apprise)}  # fmt: skip


def deliver(base, message):
    """Try to send a message by each of message["ways"], and remove from it those that succeed.

    Returns two lists of lines: what was sent, and what failed.
    """
    done, wrong = [], []
    for way in list(message["ways"]):
        send, address = WAYS[way]
        if not address(base):
            message["ways"].remove(way)  # taken out of the configuration meanwhile
            continue
        try:
            done.append(send(base, message))
            message["ways"].remove(way)
        except (OSError, ValueError, subprocess.TimeoutExpired) as err:
            wrong.append(f"{way} {address(base)}: {err}" if way == "mail" else f"{way}: {err}")
    # Only now: an alarm noted before would be lost in a crash.
    if done and message.get("problems"):
        note(message["problems"])
    return done, wrong


def beat(address):
    """Tell a monitor such as healthchecks.io that all is well; it raises an alarm when the beats stop.

    Returns why that failed, or an empty text. A lost beat is not retried: the next one says the same.
    """
    try:
        with urllib.request.urlopen(address, timeout=30):
            return ""
    except (OSError, ValueError) as err:
        return f"heartbeat: {err}"


def put(base, subject, text, facts, problems=None):
    """Store a message and try to send it. problems: as in news(), if the message is an alarm about them.

    Returns two lists of lines, what was sent and what failed, and whether the message is stored for later.
    """
    message = {"subject": subject, "text": text, "facts": facts, "ways": [w for w in WAYS if WAYS[w][1](base)],
               "problems": problems or {}, "at": time.time()}  # fmt: skip
    path = directory() / f"{time.time_ns()}.json"
    kept = False
    if message["ways"]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Store it before sending it: the machine may go down in between.
            write_file(path, json.dumps(message))
            kept = True
        except OSError:
            pass  # smartd's unit must not write there; its messages are sent once, best effort
    done, wrong = deliver(base, message)
    if kept:
        finish(path, message)
    return done, wrong, kept and bool(wrong)


def finish(path, message):
    """Remove a message that was delivered in all ways; otherwise record the ways that remain."""
    if message["ways"]:
        write_file(path, json.dumps(message))
    else:
        path.unlink()


def pending():
    """Files of the messages that wait, oldest first."""
    return sorted(p for p in directory().glob("*.json") if p.name != SENT)


def again(base):
    """Try to send all stored messages. Returns two lists of lines: what was sent, and what failed."""
    found, done, wrong = pending(), [], []
    for path in found[:-MOST]:
        path.unlink()
        wrong.append(f"{path.name}: dropped, because more than {MOST} messages are waiting")
    for path in found[-MOST:]:
        try:
            message = json.loads(path.read_text())
            one, two = deliver(base, message)
        except (ValueError, KeyError, TypeError) as err:
            path.unlink()
            wrong.append(f"{path.name}: cannot be read and was removed: {err}")
            continue
        finish(path, message)
        done += [f"{message['subject']}: {d}" for d in one]
        wrong += [f"{message['subject']}: {w}" for w in two]
    return done, wrong
