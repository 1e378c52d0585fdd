# SPDX-License-Identifier: GPL-2.0-only
"""Failures, as exit codes of the command; itree-backup(8) lists them."""

FAILED = 1
USAGE = 2
BUSY = 3
SPACE = 4
CLIENT = 5
REFUSED = 6
DAMAGED = 7
INTERRUPTED = 8
GAPS = 9

# Their names in status.json, metrics and messages.
NAMES = {
    FAILED: "failed",
    USAGE: "configuration",
    BUSY: "busy",
    SPACE: "no-space",
    CLIENT: "client-gone",
    REFUSED: "refused",
    DAMAGED: "damaged",
    INTERRUPTED: "interrupted",
    GAPS: "gaps",
}


class BackupError(Exception):
    """Something the admin must know; the text says what happened, to what, and what to do next."""

    def __init__(self, message, code=FAILED):
        super().__init__(message)
        self.code = code


class Interrupted(BackupError):
    """SIGTERM or SIGINT: the work stays as it is, so that it can be resumed."""

    def __init__(self, number):
        super().__init__(f"stopped by signal {number}; the next run goes on from here", INTERRUPTED)
