#!/bin/bash
# Runs the PostgreSQL tests on majors other than the machine's own.
#
#   scripts/test-versions.sh           on every supported major, the kill test included
#   scripts/test-versions.sh newest    on the newest alone, what depends most on the server
#
# Where a server cannot be had it says so and goes on; with CI=true it fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra majors <<<"$(scripts/postgres.sh supported)"
packages=(./connector/postgres ./test/cases ./test/e2e)
all=true
if [ "${1:-}" = newest ]; then
	majors=("${majors[-1]}")
	all=false
fi

# on FOLDER ARGUMENTS...: tests with the server programs in this folder.
on() {
	local bin=$1
	shift
	SLUICE_TEST_PGBIN=$bin go test -race -timeout 20m "$@"
}

# between OLD NEW: every data case from one major to another one.
between() {
	if [ -n "${bins[$1]:-}" ] && [ -n "${bins[$2]:-}" ]; then
		echo "== from PostgreSQL $1 to PostgreSQL $2"
		SLUICE_TEST_PGBIN_SINK=${bins[$2]} on "${bins[$1]}" ./test/cases || failed+=("$1 to $2")
	fi
}

failed=()
declare -A bins
for major in "${majors[@]}"; do
	code=0
	bin=$(scripts/postgres.sh "$major") || code=$?
	if [ "$code" = 3 ] && [ "${CI:-}" != true ]; then
		echo "SKIPPING the tests on PostgreSQL $major"
		continue
	elif [ "$code" != 0 ]; then
		exit "$code"
	fi
	bins[$major]=$bin
	echo "== $("$bin/postgres" --version)"
	on "$bin" "${packages[@]}" || failed+=("$major")
	if $all; then
		on "$bin" . || failed+=("$major (library)")
		on "$bin" ./test/crash -run 'TestKill' -kills 10 -sqlite-kills 0 || failed+=("$major (crash)")
	fi
done
if $all; then
	between "${majors[0]}" "${majors[-1]}"
	between "${majors[-1]}" "${majors[0]}"
fi
if [ "${#failed[@]}" -gt 0 ]; then
	echo "FAILED on PostgreSQL ${failed[*]}"
	exit 1
fi
