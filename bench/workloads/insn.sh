#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Count the instructions of creating, listing, looking at and removing files.
# Runs in a guest under QEMU's -icount (see insn.c); prints one JSON object.
# What starting the program costs is counted on an empty directory and taken off.
set -euo pipefail

programs=$1 mnt=$2 count=$3 bytes=$4
note=/run/insn

# counted COMMAND...: its instructions; run a program once before, so that it is in memory
counted() {
	"$programs/insn" "$note" "$@" >/dev/null
	cat "$note"
}

remove() {
	# shellcheck disable=SC2016 # expanded by the shell that is counted
	counted sh -c 'rm -r "$1" && sync -f "$2"' rm "$1" "$mnt"
}

mkdir "$mnt/empty" "$mnt/gone"
"$programs/fill" -q -n 0 "$mnt/empty" >/dev/null
start_fill=$(counted "$programs/fill" -q -n 0 "$mnt/empty")
"$programs/walk" "$mnt/empty" >/dev/null
start_walk=$(counted "$programs/walk" "$mnt/empty")
rm -r "$mnt/gone"
start_rm=$(remove "$mnt/empty")

create=$(counted "$programs/fill" -q -n "$count" -s "$bytes" -y 10000 "$mnt/dir")
"$programs/walk" "$mnt/dir" >/dev/null
names=$(counted "$programs/walk" -n "$mnt/dir")
lstat=$(counted "$programs/walk" "$mnt/dir")
removed=$(remove "$mnt/dir")

printf '{"create": %d, "names": %d, "lstat": %d, "rm": %d}\n' \
	$((create - start_fill)) $((names - start_walk)) $((lstat - start_walk)) $((removed - start_rm))
