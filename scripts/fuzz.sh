#!/bin/bash
# Runs every fuzz test of the module, two at a time, each for the time given (10s by default). An input that fails one is
# kept in the package's testdata and belongs into the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export FUZZ_TIME=${1:-10s}

# fuzz_one PACKAGE NAME: Go runs one fuzz test of one package at a time. Minimizing interesting inputs would take up most
# of a short run. Now and then Go takes the end of its own fuzztime for a failure: then there is no failing input, and
# "context deadline exceeded" is all that it says of it. (A call that hangs until then passes as well, with or without this:
# what must not hang needs a test of its own.)
fuzz_one() {
	local output
	if output=$(go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZ_TIME" -fuzzminimizetime 100x -parallel 1 2>&1 </dev/null); then
		echo "fuzz $1 $2: fine for $FUZZ_TIME"
	elif grep -q '^    context deadline exceeded$' <<<"$output" && ! grep -qE 'Failing input|hung|panic' <<<"$output"; then
		echo "fuzz $1 $2: fine until its time was over"
	else
		echo "fuzz $1 $2: FAILED"
		echo "$output"
		return 255 # xargs starts no more
	fi
}
export -f fuzz_one

grep -rnoE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . |
	sed -E 's/^(.*)\/[^/]*_test\.go:[0-9]+:func (.*)$/\1 \2/' | sort -u |
	xargs -P 2 -L 1 bash -c 'fuzz_one "$@"' fuzz
