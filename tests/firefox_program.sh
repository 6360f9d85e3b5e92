#!/usr/bin/env bash
# Prints the path of a Firefox, if this machine has one. With --install, it installs Debian's.
tool=Firefox target=firefox
find_program() { command -v "${TRACEKIT_FIREFOX:-firefox-esr}" || command -v firefox; }
. "$(dirname "$0")/debian_program.sh"

run_quietly apt-get install -y --no-install-recommends firefox-esr
find_program || fail "it is not on the PATH"
