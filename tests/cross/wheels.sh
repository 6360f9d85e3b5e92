#!/usr/bin/env bash
# Builds what is published and looks at it as a stranger's machine would: both wheels from what git has, in VENV, the
# environment of `make wheels`; a wheel of plain C says the same as one with all that the compiler has.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(cd "${VENV:?the environment with build, abi3audit, auditwheel, check-wheel-contents, twine and ziglang}/bin" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
out=${OUT:-build/wheels}
rm -rf "$out" && mkdir -p "$out"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' name; do
  if [ -f "$name" ]; then printf '%s\0' "$name"; fi
done | tar --create --null --files-from=- | tar --extract --directory "$scratch"

"$bin/python" -m build --wheel --outdir "$scratch/dist" "$scratch" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
"$bin/python" -m build --outdir "$scratch/dist" "$scratch/capture" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
"$bin/auditwheel" repair --wheel-dir "$out" "$scratch"/dist/tracekit_rl-*.whl > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
cp "$scratch"/dist/tracekit_rl_capture-* "$out"
"$bin/abi3audit" --strict --summary "$out"/tracekit_rl-*.whl
"$bin/check-wheel-contents" "$out"/*.whl
"$bin/twine" check --strict "$out"/*

said() { # what an installation says of an example, without the time of day
  "$1/bin/tracekit" analyze --no-cache examples/simulated_gpu/outputs/profile --json --quiet
}
for kind in full plain; do
  "$bin/python" -m venv "$scratch/$kind"
done
"$scratch/full/bin/pip" install --quiet --disable-pip-version-check "$out"/tracekit_rl-*.whl
CFLAGS=-DTRACEKIT_PLAIN_C "$scratch/plain/bin/pip" install --quiet --disable-pip-version-check "$scratch"
for module in readers.chrome._scan readers.nsys._pages readers.torch_memory._harmless model._sweeps; do
  "$scratch/plain/bin/python" -c "import tracekit.$module"
done
(cd "$scratch" && said "$scratch/full" > full.json && said "$scratch/plain" > plain.json && cmp full.json plain.json)
echo "plain C says the same as all of it"
(cd / && "$scratch/full/bin/tracekit" demo > /dev/null 2>&1) && echo "the installed example is answered"
PYTHON="$bin/python" bash tests/cross/compile.sh
ls "$out"
