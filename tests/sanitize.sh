#!/usr/bin/env bash
# What is written in C under address and undefined-behaviour sanitizers, in a copy of the tree: its tests, a fuzz of
# its chunking, and the comparison with the pure-Python reader on damaged files. CASES sets how many.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -co --exclude-standard | tar cf - -T - | tar xf - -C "$copy"
cd "$copy"
"${PYTHON:-python3}" -m venv venv
CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g" \
LDFLAGS="-fsanitize=address,undefined" venv/bin/pip install -q --disable-pip-version-check -e . pytest hypothesis
ls tracekit/readers/*/_{scan,pages,harmless,records}.*.so tracekit/model/_sweeps.*.so tracekit/{process/memory/allocator/_allocator,replay/_paths}.*.so # the build is optional: without this line a broken one would pass
export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc
cases=${CASES:-20000}
unset TRACEKIT_REAL_DATA
venv/bin/python -m pytest -q -p no:cacheprovider tests/readers/test_native*.py tests/readers/test_stretches.py tests/readers/test_kept_names.py tests/readers/test_nsys_pages.py tests/readers/test_torch_memory_harmless.py tests/readers/test_torch_memory_records.py tests/model/test_sweeps.py tests/process/test_allocator.py tests/replay/test_paths.py tests/replay/test_transport.py
venv/bin/python tests/support/readers/fuzz_native.py examples/verl_cpu/outputs/profile/*.json.gz --cases "$cases" --seed 0
venv/bin/python tests/fuzz_readers.py --cases "$cases" --seed 0
