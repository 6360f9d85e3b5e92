"""A release runs known tools: by hash, and actions by commit."""

import re

import pins
import pytest

COMMIT = re.compile("[0-9a-f]{40}")
USED = {
    f"{use['name']}@{use['ref']}": use for path in pins.workflows() for use in pins.USES.finditer(path.read_text())
}  # fmt: skip


def test_every_action_is_pinned_by_its_commit_with_the_tag_beside_it():
    # The line that shows how tracekit's own action is used names no action of others.
    others = {name: use for name, use in USED.items() if not name.startswith("OWNER/")}
    assert others
    assert {name for name, use in others.items() if not COMMIT.fullmatch(use["ref"])} == set()
    assert all(use["tag"] for use in others.values())


def test_pinning_writes_the_commit_and_keeps_the_tag():
    commit = "0123456789abcdef0123456789abcdef01234567"
    text = "      - uses: actions/checkout@v4\n        with: {}\n"
    once = pins.pin_actions(text, lambda name, tag: {("actions/checkout", "v4"): commit}[name, tag])
    assert once == f"      - uses: actions/checkout@{commit} # v4\n        with: {{}}\n"
    assert pins.pin_actions(once, lambda *_: commit) == once


@pytest.mark.parametrize("path", pins.LISTS, ids=lambda path: path.name)
def test_every_tool_of_a_release_has_a_hash(path):
    lines = path.read_text().splitlines()[1:]
    pinned = [
        re.fullmatch(r"([a-z0-9._-]+)==\S+(?: ; \S+ != \S+)?(?: --hash=sha256:[0-9a-f]{64})+", line) for line in lines
    ]
    assert all(pinned)
    assert {match[1] for match in pinned} >= {re.match("[a-z0-9-]+", name)[0] for name in pins.LISTS[path]}


def test_a_release_installs_nothing_else():
    workflow = (pins.ROOT / ".github/workflows/release.yml").read_text()
    installed = re.findall(r"pip install (?!--find-links|--require-hashes|\.)(.*)", workflow)
    # What the wheels need at run time is what users get, the newest there is.
    assert installed == ["backports.zstd click isal numpy pandas pyyaml rich scipy && tracekit demo"]
