#!/usr/bin/env bash
# Prints the path of an `nsys`, if this machine has one. With --install, it installs the one of Debian's non-free packages.
tool=nsys target=nsys
installed=/usr/lib/nsight-systems/bin/nsys
find_program() { command -v "${TRACEKIT_NSYS:-nsys}" || { [ -x "$installed" ] && echo "$installed"; }; }
. "$(dirname "$0")/debian_program.sh"

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" 'Component: main' | head -n 1)
[ -n "$mirror" ] || fail "apt names no mirror of $VERSION_CODENAME"
if [ -z "$(apt-get indextargets 'Created-By: Packages' 'Component: non-free')" ]; then
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $VERSION_CODENAME contrib non-free" \
    >/etc/apt/sources.list.d/tracekit-nonfree.list
  run_quietly apt-get update
fi
run_quietly apt-get install -y --no-install-recommends nsight-systems nsight-systems-target
# Without this link it leaves unfinished reports (.qdstrm), with status 0.
ln -sfn /usr/lib/nsight-systems/host-linux-x64 /usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64
find_program || fail "it does not start"
