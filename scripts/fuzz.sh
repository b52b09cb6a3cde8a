#!/bin/bash
# Runs every fuzz test of the module, one after the other, each for the time given (10s by default). An input that fails
# one is kept in the package's testdata and belongs into the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-10s}

# Go runs one fuzz test of one package at a time. Minimizing interesting inputs would take up most of a short run.
grep -rnoE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's/^(.*)\/[^/]*_test\.go:[0-9]+:func (.*)$/\1 \2/' | sort -u |
	while read -r package name; do
		echo "fuzz $package $name for $time"
		if ! output=$(go test "$package" -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 100x </dev/null 2>&1); then
			echo "$output"
			exit 1
		fi
	done
