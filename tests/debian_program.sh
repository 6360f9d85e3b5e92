# Sourced by firefox_program.sh and nsys_program.sh, which set `tool` and `target` and define `find_program`.
# Prints the path of the program and ends, or, with --install, prepares its installation from Debian's packages as root.
# Explanations go to stderr. Status 0 and no path: this machine cannot have the program. Status 1: the installation failed.
set -uo pipefail

skip() { echo "no tests with $tool: $1" >&2; exit 0; }
fail() { echo "$tool could not be installed: $1" >&2; tail -n 5 "$log" >&2; exit 1; }
run_quietly() { "$@" >>"$log" 2>&1 || fail "$*"; }

find_program && exit 0
[ "${1:-}" = --install ] || skip "it is not installed (\`make $target\` installs it on Debian)"
[ "$(id -u)" = 0 ] || skip "not root"
[ -r /etc/os-release ] && . /etc/os-release
[ "${ID:-}" = debian ] || skip "${ID:-this system} is not Debian"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
run_quietly apt-get update
