# SPDX-License-Identifier: GPL-2.0-only
"""Commands that tests run: without a terminal, and an unexpected exit code fails the test with the output."""

import os
import subprocess


def finished(*argv, ok=(0,), env=None, input_=None, **kwargs):
    """Run a command and return the finished process; its standard output holds the standard error, too.

    ok: the exit codes that are expected, None for any. env: variables to add to the environment, or to remove where
    the value is None. input_: text for standard input, which is empty by default.
    """
    __tracebackhide__ = True
    kwargs |= {"stdin": subprocess.DEVNULL} if input_ is None else {"input": input_}
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": 600, **kwargs}
    env = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "", **(env or {})}
    kwargs["env"] = {name: value for name, value in env.items() if value is not None}
    res = subprocess.run([str(a) for a in argv], text=True, errors="replace", check=False, **kwargs)
    if ok is not None:
        assert res.returncode in ok, f"{argv}: exit code {res.returncode}\n{res.stdout or ''}{res.stderr or ''}"
    return res


def run(*argv, **kwargs):
    """Run a command as finished() does and return (exit code, everything it printed)."""
    __tracebackhide__ = True
    res = finished(*argv, **kwargs)
    return res.returncode, res.stdout
