"""No text of a profile acts on a terminal, the log of a CI job or a client: `::stop-commands::x` is a name like any other."""

import json
import os
import re
import subprocess
import sys
import unicodedata

import pytest
from chrome_builder import annotation, launched, op, step, write
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_session import session

from tracekit.model.text.escape import Lines, escape_lines, make_visible
from tracekit.render.ci.gates import make_annotation as github_annotation

NAMES = (
    "::stop-commands::x",
    "a\n::add-mask::b",
    "  ::set-env name=PATH::/tmp",
    "##[add-mask]c",
    "d ##vso[task.setvariable]e",
    "\x1b]0;title\x07\x1b[2J",
    "\u202etxt.exe",
    "nul\0here",
    "\r::error::f",
    "\u2028::error::g",
    "\x85::error::h",
)


def commands(text):
    """The lines that the runner of GitHub Actions or of Azure takes for commands."""
    # .NET's ReadLine ends lines at \r and \n, and Trim drops every kind of space.
    lines = re.split("[\r\n]", text)
    found = [line for line in lines if line.lstrip().startswith("::")]
    return found + [line for line in lines if re.search(r"##\w*\[", line)]


def hidden(text):
    """The characters of a text that do not show, except line ends, tabs and spaces."""
    kinds = {character: unicodedata.category(character) for character in set(text) - {"\n", "\t"}}
    return {character for character in kinds if kinds[character][0] in "CZ"} - {" ", "\xa0"}


@given(st.text() | st.lists(st.sampled_from([*NAMES, "::", " ", "\n", "##", "["])).map("".join))
@example("\x1c::error::x")
@example("####[error]x")
def test_lines_hold_no_command_and_nothing_hidden(text):
    lines = escape_lines(text)
    assert commands(lines) == []
    assert {character for character in hidden(lines) if unicodedata.category(character) != "Zs"} == set()
    assert escape_lines(lines) == lines


def test_colors_stay_where_they_are_asked_for_and_other_escapes_do_not():
    text = "\x1b[1;31mred\x1b[0m \x1b[2J\x1b]0;x\x07"
    assert make_visible(text, keeps_color=True) == "\x1b[1;31mred\x1b[0m \\x1b[2J\\x1b]0;x\\x07"
    assert "\x1b" not in make_visible(text)


def test_an_annotation_is_one_line_whatever_it_says():
    for name in NAMES:
        assert len(commands(github_annotation("error", name, name))) in (1, 2)
        assert hidden(github_annotation("error", name, name)) == set()


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A run of two ranks in which everything has a hostile name."""
    folder = tmp_path_factory.mktemp("::error::run")
    rows = [step(1, 0, 1_000), step(2, 1_000, 1_000)]
    for n, name in enumerate(NAMES):
        start = 10 + 80 * n
        rows += [annotation(name, start, 70), op(name, start + 1, 60)]
        rows += launched(name, start + 5, start + 20, 40, 100 + n)
    for rank in (0, 1):
        write(folder / f"::error::rank{rank}.json", rows, rank=rank, world_size=2)
    (folder / "::warning::broken\x1b[2J.json").write_text("{")
    return folder


def in_a_job(*arguments):
    """What a command says in a job of GitHub's: (standard output, standard error, status)."""
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *map(str, arguments)],
        env={**os.environ, "GITHUB_ACTIONS": "true", "COLUMNS": "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr, done.returncode


SQL = "SELECT DISTINCT name FROM device_ops ORDER BY name"


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", "PATH"),
        ("analyze", "PATH", "-v"),
        ("analyze", "PATH", "--export", "md=-"),
        ("inspect", "PATH", "-v"),
        ("doctor", "PATH", "-v"),
        ("sql", "PATH", SQL),
        ("sql", "PATH", "SELECT * FROM '::error::x\n::error::y'"),
        ("compare", "PATH", "PATH"),
        ("analyze", "::stop-commands::x\n::error::y"),
        ("::stop-commands::x",),
        ("analyze", "PATH", "--ranks", "\n::error::x"),
    ],
)
def test_a_job_of_github_runs_no_command_that_a_profile_names(arguments, profile):
    out, err, _ = in_a_job(*(profile if part == "PATH" else part for part in arguments))
    assert commands(out) == []
    assert hidden(out + err) - {"\u2009", "\u202f"} == set()
    # All that is said on standard error is said while commands are stopped, by a token nobody can know.
    first, *inside, last = err.splitlines()
    token = re.fullmatch("::stop-commands::([0-9a-f]{32})", first)[1]
    assert last == f"::{token}::"
    assert commands("\n".join(inside)) == []


def test_the_token_is_another_one_every_time(profile):
    assert in_a_job("inspect", profile)[1] != in_a_job("inspect", profile)[1]


def test_data_on_standard_output_is_data_alone(profile):
    out, _, _ = in_a_job("analyze", profile, "--export", "json=-")
    assert json.loads(out)["schema"]
    assert hidden(out) == set()


def test_outside_a_job_there_is_no_token(profile, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "inspect", str(profile)], capture_output=True, text=True, check=False
    )
    assert "stop-commands::" not in done.stderr
    assert commands(done.stdout) == []


def test_a_client_of_agents_is_sent_nothing_hidden(profile):
    with session(profile.parent) as client:
        path = profile.name
        for tool, further in (
            ("paths", {"path": path}),
            ("analyze", {}),
            ("findings", {}),
            ("tables", {}),
            ("tables", {"table": "kernels"}),
            ("sql", {"statement": SQL}),
            ("sql", {"statement": "SELECT '\u202e'"}),
            ("analyze", {"ranks": "\x1b[2J"}),
        ):
            result = client.call(tool, **{"path": path, **further})
            said = "".join(content.text for content in result.content)
            assert commands(said) == []
            said += json.dumps(result.structured_content, ensure_ascii=False)
            assert hidden(said) - {"\u2009", "\u202f"} == set(), tool
            assert "\\u0000" not in said
            assert "\\u001b" not in said


def test_the_type_of_lines_is_what_streams_take():
    assert escape_lines("a") == Lines("a")
