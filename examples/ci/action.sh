#!/usr/bin/env bash
# The steps of ../../action.yml. Inputs are variables with TK_ before them; a list is one thing a line.
#   action.sh run      runs tracekit, writes the page, the JSON and the comment, and the step's outputs; never fails by itself
#   action.sh comment  writes the comment of the pull request anew
#   action.sh finish   leaves with the status of tracekit
set -euo pipefail

lines() { # the lines of a text that are not empty, as the array `listed`
  listed=()
  while IFS= read -r line; do
    line="${line#"${line%%[![:space:]]*}"}"
    line="${line%"${line##*[![:space:]]}"}"
    if [ -n "$line" ]; then listed+=("$line"); fi
  done <<< "$1"
}

output() { printf '%s=%s\n' "$1" "$2" >> "$GITHUB_OUTPUT"; }

run() {
  folder="${RUNNER_TEMP:-/tmp}/tracekit-${GITHUB_RUN_ID:-0}-${GITHUB_ACTION:-0}"
  mkdir -p "$folder"
  environment="$folder.venv"
  source="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)" # the commit of the action that the workflow names
  "$TK_PYTHON" -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "${TK_PACKAGE:-$source}"

  lines "$TK_ARGS"
  further=(${listed[@]+"${listed[@]}"})
  if [ -n "${TK_CONFIG:-}" ]; then further+=(--config "$TK_CONFIG"); fi
  words=()
  case "$TK_COMMAND" in
    analyze | gate)
      lines "$TK_PATH"
      words=(${listed[@]+"${listed[@]}"}) ;;
    compare)
      lines "$TK_BASE"
      for side in ${listed[@]+"${listed[@]}"}; do words+=(--base "$side"); done
      lines "$TK_OPT"
      for side in ${listed[@]+"${listed[@]}"}; do words+=(--opt "$side"); done ;;
    *)
      echo "::error::tracekit: the input command is analyze, compare or gate"
      output status 2
      return ;;
  esac

  page="$folder/report.html"
  status=0
  "$environment/bin/tracekit" "$TK_COMMAND" ${words[@]+"${words[@]}"} ${further[@]+"${further[@]}"} \
    --output "$page" --output "$folder/report.json" --output "$folder/comment.md" || status=$?
  output status "$status"
  output folder "$folder"
  if [ -f "$page" ]; then output report "$page"; fi
  if [ -f "$folder/report.json" ]; then output json "$folder/report.json"; fi
  if [ "$TK_COMMAND" = analyze ] && [ -f "$folder/comment.md" ] && [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    cat "$folder/comment.md" >> "$GITHUB_STEP_SUMMARY"
  fi
}

comment() {
  body="$TK_FOLDER/comment.md"
  if [ ! -f "$body" ]; then return; fi
  marked="$TK_FOLDER/marked.md"
  marker=$(head -n 1 "$body")
  case "$marker" in
    "<!--"*) cp "$body" "$marked" ;;
    *)
      marker="<!-- tracekit analyze -->"
      { echo "$marker"; cat "$body"; } > "$marked" ;;
  esac
  found=$(gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$TK_NUMBER/comments" \
    --jq ".[] | select(.body | startswith(\"$marker\")) | .id" | head -n 1)
  if [ -n "$found" ]; then
    gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$found" -F "body=@$marked"
  else
    gh api --silent "repos/$GITHUB_REPOSITORY/issues/$TK_NUMBER/comments" -F "body=@$marked"
  fi
}

finish() {
  if [ "$TK_STATUS" = 3 ] && [ "$TK_ALLOW" = true ]; then
    echo "::warning::tracekit: no baseline, or nothing that can be compared"
    return
  fi
  exit "${TK_STATUS:-2}"
}

"$1"
