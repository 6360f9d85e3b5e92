#!/usr/bin/env bash
# Compiles every C file for the systems that wheels are made for, as far as one machine can: with the cross compiler of the
# Python package ziglang. For Windows without what only GCC and Clang have (TRACEKIT_PLAIN_C), and with an error for every
# extension of theirs, as MSVC would not take it. PYTHON has ziglang installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
cp -r "$include" "$scratch/windows"
cp tests/cross/pyconfig.h "$scratch/windows/pyconfig.h"
targets=${TARGETS:-x86_64-windows-gnu aarch64-windows-gnu x86_64-macos aarch64-macos x86_64-linux-musl aarch64-linux-gnu}
for target in $targets; do
  options=(-isystem "$include")
  case $target in *windows*) options=(-DTRACEKIT_PLAIN_C -isystem "$scratch/windows") ;; esac
  for file in $(find tracekit -name '*.c' | sort); do
    "$python" -m ziglang cc -target "$target" -std=c11 -O2 -Wall -Wextra -Werror -Wgnu -Wvla -Wno-unused-parameter \
      -DPy_LIMITED_API=0x030b0000 "${options[@]}" -c "$file" -o "$scratch/object.o"
  done
  echo "$target: $(find tracekit -name '*.c' | wc -l) files compiled"
done
