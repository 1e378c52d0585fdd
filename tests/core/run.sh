#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs the built tests: run.sh BUILD_DIRECTORY FUZZ_RUNS
# Prints what they print and, last, "N passed, N failed".
set -u
build=$1
runs=$2
here=$(dirname "$0")
passed=0
failed=0

export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"

log=$(mktemp) || exit 2
out=$(mktemp -d) || exit 2
trap 'rm -rf "$log" "$out"' EXIT

tap() {
	"$@" >"$log" 2>&1
	status=$?
	cat "$log"
	ok=$(grep -c '^ok ' "$log")
	bad=$(grep -c '^not ok ' "$log")
	planned=$(sed -n 's/^1\.\.//p' "$log")
	passed=$((passed + ok))
	failed=$((failed + bad))
	# a program that ends early or lies is a failure, too
	if [ "$((ok + bad))" != "${planned:-none}" ] ||
	   { [ "$status" != 0 ] && [ "$bad" = 0 ]; }; then
		echo "not ok - $1 did not finish (status $status)"
		failed=$((failed + 1))
	fi
}

fuzz() {
	name=$1
	shift
	if "$@" -artifact_prefix="$build/fuzz/" >"$log" 2>&1; then
		grep -E '^(Executed|Done|#[0-9]+.*(DONE|INITED))' "$log" |
			sed 's/^/# /'
		echo "ok - $name"
		passed=$((passed + 1))
	else
		tail -n 60 "$log"
		echo "not ok - $name"
		failed=$((failed + 1))
	fi
}

for t in test_unit test_fault test_model; do
	tap "$build/san/$t"
done

fuzzer=$build/fuzz/fuzz_node
fuzz "fuzz: inputs that once failed" "$fuzzer" -runs=0 "$here/corpus"
fuzz "fuzz: $runs runs" "$fuzzer" -runs="$runs" -seed=1 -max_len=24000 \
	-timeout=20 -rss_limit_mb=2048 "$out" "$build/fuzz/corpus" \
	"$here/corpus"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
