# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only
# Completion for e4itree(8). Takes commands and options from its --help, so that they always match the program.

_e4itree()
{
	local cur=${COMP_WORDS[COMP_CWORD]} words help
	help=$(e4itree --help 2>/dev/null)
	if [[ $cur == -* ]]; then
		words=$(sed -nE 's/^ +(-., )?(--[a-z-]+) .*/\2/p' <<<"$help")
	elif ((COMP_CWORD == 1)); then
		words=$(sed -nE '1s/^Usage: e4itree ([a-z|]+) .*/\1/p' <<<"$help")
		words=${words//|/ }
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -o dirnames -F _e4itree e4itree
