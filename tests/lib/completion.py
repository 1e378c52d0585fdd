# SPDX-License-Identifier: GPL-2.0-only
"""The words that bash offers for a command by its completion."""

import subprocess

# As bash itself calls the function: with the command, the word to complete and the word before it.
SCRIPT = """
source "$1"
COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2))
set -- $(complete -p "$2")
while [[ $1 != -F ]]; do shift; done
"$2" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(script, *words, env=None):
    """Return what a completion script offers for the last of some words, the first of which is the command."""
    argv = ["bash", "-c", SCRIPT, "bash", script, *words]
    done = subprocess.run(argv, env=env, check=True, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout.split()
