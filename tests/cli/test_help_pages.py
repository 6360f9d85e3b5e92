"""Help pages: options in groups, rare ones last, and commands in groups."""

import re

import pytest

from tracekit.cli import COMMAND_GROUPS, COMMANDS, help_pages, main


def list_sections(text):
    """The titles of a help page with the flags, or commands, below each."""
    sections = {}
    for title, body in re.findall(r"^(\w[\w ]*):\n((?:  .*\n?)+)", text, re.MULTILINE):
        sections[title] = re.findall(r"^  (\S+)", body, re.MULTILINE)
    return sections


def test_commands_stand_in_groups(call):
    sections = list_sections(call("--help").stdout)
    assert {title: tuple(names) for title, names in sections.items() if title in COMMAND_GROUPS} == COMMAND_GROUPS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_once_and_rare_ones_come_last(call, name):
    text = call(name, "--help").stdout
    sections = list_sections(text)
    sections.pop("Usage", None)
    order = ["Options", *help_pages.OPTION_GROUPS]
    assert list(sections) == [title for title in order if title in sections]
    command = main.get_command(None, name)
    shown = {option.name for option in command.params if not getattr(option, "hidden", True)}
    assert sum(map(len, sections.values())) == len(shown) + 1, "and --help"
    assert not re.search(r"x>=|<=x|<x", text)


def test_groups_name_only_options_that_exist():
    names = {option.name for name in COMMANDS for option in main.get_command(None, name).params}
    grouped = [name for group in help_pages.OPTION_GROUPS.values() for name in group if name != "--help"]
    assert set(grouped) <= names
    assert len(grouped) == len(set(grouped))


def test_no_line_is_wider_than_the_page(call):
    for name in COMMANDS:
        assert max(map(len, call(name, "--help").stdout.splitlines())) <= 100


def test_fail_on_is_described_for_what_each_command_tests(call):
    compare, gate = (" ".join(call(name, "--help").stdout.split()) for name in ("compare", "gate"))
    assert "if the second side is worse by more than a limit, METRIC>LIMIT" in compare
    assert "regression (a significant slowdown)" in compare
    assert "With --self-test: also test this limit on a change" in gate
    assert "A budget of one profile needs a gate file" in gate
    assert "second side" not in gate
