"""A release runs known tools: by hash, and actions by commit as soon as somebody with a network has pinned them."""

import re

import pins
import pytest

UNPINNED = {
    "actions/attest-build-provenance@v2",
    "actions/attest-sbom@v2",
    "actions/checkout@v4",
    "actions/download-artifact@v4",
    "actions/setup-python@v5",
    "actions/upload-artifact@v4",
    "pypa/cibuildwheel@v3",
    "pypa/gh-action-pypi-publish@v1.12.4",
}
"""Actions by tag, whose commits nobody looked up yet: `python tests/pins.py actions` pins them. This list only shrinks."""

COMMIT = re.compile("[0-9a-f]{40}")
USED = {
    f"{use['name']}@{use['ref']}": use for path in pins.workflows() for use in pins.USES.finditer(path.read_text())
}  # fmt: skip


def test_every_action_is_pinned_by_its_commit_or_waits_for_that():
    by_tag = {name for name, use in USED.items() if not COMMIT.fullmatch(use["ref"])}
    # The line of action.yml that shows how it is used names no action of others.
    assert by_tag - {"OWNER/tracekit@v0"} <= UNPINNED
    assert by_tag >= UNPINNED, "what is pinned now leaves the list"


@pytest.mark.parametrize("name", USED)
def test_no_action_follows_a_branch(name):
    use = USED[name]
    assert COMMIT.fullmatch(use["ref"]) or re.fullmatch(r"v\d+(\.\d+)*", use["ref"])
    assert not COMMIT.fullmatch(use["ref"]) or use["tag"], "the tag beside the commit"


def test_pinning_writes_the_commit_and_keeps_the_tag():
    commit = "0123456789abcdef0123456789abcdef01234567"
    text = "      - uses: actions/checkout@v4\n        with: {}\n"
    once = pins.pin_actions(text, lambda name, tag: {("actions/checkout", "v4"): commit}[name, tag])
    assert once == f"      - uses: actions/checkout@{commit} # v4\n        with: {{}}\n"
    assert pins.pin_actions(once, lambda *_: commit) == once


def test_every_tool_of_a_release_has_a_hash():
    lines = pins.TOOLS.read_text().splitlines()[1:]
    pinned = [
        re.fullmatch(r"([a-z0-9._-]+)==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines
    ]
    assert all(pinned)
    assert {match[1] for match in pinned} >= set(pins.NAMED)
    workflow = (pins.ROOT / ".github/workflows/release.yml").read_text()
    installed = re.findall(r"pip install (?!--find-links|--require-hashes|\.)(.*)", workflow)
    # What the wheels need at run time is what users get, the newest there is.
    assert installed == [
        "backports.zstd click isal jinja2 numpy pandas rich scipy && tracekit demo"
    ]
