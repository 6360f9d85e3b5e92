#!/usr/bin/env bash
# Prints the path of an `nsys`, or nothing where this machine has none and can have none; what was tried goes to stderr.
# With --install it is taken from Debian's non-free packages, as root. Status 1: it could be had and was not.
set -uo pipefail
installed=/usr/lib/nsight-systems/bin/nsys

program() { command -v "${TRACEKIT_NSYS:-nsys}" || { [ -x "$installed" ] && echo "$installed"; }; }
without() { echo "no tests of nsys: $1" >&2; exit 0; }
failed() { echo "nsys could not be installed: $1" >&2; tail -n 5 "$log" >&2; exit 1; }
quietly() { "$@" >>"$log" 2>&1 || failed "$*"; }

program && exit 0
[ "${1:-}" = --install ] || without "it is not installed (\`make nsys\` installs it on Debian)"
[ "$(id -u)" = 0 ] || without "not root"
[ -r /etc/os-release ] && . /etc/os-release
[ "${ID:-}" = debian ] || without "${ID:-this system} is not Debian"
log=$(mktemp)
quietly apt-get update
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" 'Component: main' | head -n 1)
[ -n "$mirror" ] || failed "apt names no mirror of $VERSION_CODENAME"
if [ -z "$(apt-get indextargets 'Created-By: Packages' 'Component: non-free')" ]; then
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $VERSION_CODENAME contrib non-free" \
    >/etc/apt/sources.list.d/tracekit-nonfree.list
  quietly apt-get update
fi
export DEBIAN_FRONTEND=noninteractive
quietly apt-get install -y --no-install-recommends nsight-systems nsight-systems-target
# Without this link it leaves unfinished reports (.qdstrm), with status 0.
ln -sfn /usr/lib/nsight-systems/host-linux-x64 /usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64
program || failed "it does not start"
