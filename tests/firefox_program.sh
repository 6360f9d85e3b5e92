#!/usr/bin/env bash
# Prints the path of a Firefox, or nothing where this machine has none and can have none; what was tried goes to stderr.
# With --install it is taken from Debian's packages, as root. Status 1: it could be had and was not.
set -uo pipefail

program() { command -v "${TRACEKIT_FIREFOX:-firefox-esr}" || command -v firefox; }
without() { echo "no tests in Firefox: $1" >&2; exit 0; }
failed() { echo "Firefox could not be installed: $1" >&2; tail -n 5 "$log" >&2; exit 1; }
quietly() { "$@" >>"$log" 2>&1 || failed "$*"; }

program && exit 0
[ "${1:-}" = --install ] || without "it is not installed (\`make firefox\` installs it on Debian)"
[ "$(id -u)" = 0 ] || without "not root"
[ -r /etc/os-release ] && . /etc/os-release
[ "${ID:-}" = debian ] || without "${ID:-this system} is not Debian"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
quietly apt-get update
quietly apt-get install -y --no-install-recommends firefox-esr
program || failed "it is not on the PATH"
