"""Questions of a stranger: README, pages, first screens and rule pages contain the answers, in whatever sentence."""

import tomllib
from pathlib import Path

import pytest
from command_line import invoke

ROOT = Path(__file__).parents[2]
READING = tomllib.loads((Path(__file__).parent / "questions.toml").read_text())["reading"]
LINES = 6


def read_text(question):
    """The text that a question is about."""
    if "page" in question:
        return (ROOT / question["page"]).read_text(encoding="utf-8")
    arguments = question.get("command") or ["explain", question["rule"]]
    done = invoke(*arguments)
    assert done.exit_code == question.get("status", 0), done.stderr
    return done.stdout


def find_answer(text, words, lines=LINES):
    """Whether all words are within so many lines, line ends of wrapped sentences taken as spaces."""
    rows = [" ".join(row.split()).casefold() for row in text.splitlines()]
    windows = (" ".join(filter(None, rows[at : at + lines])) for at in range(len(rows)))
    wanted = [" ".join(word.split()).casefold() for word in words]
    return any(all(word in window for word in wanted) for window in windows)


@pytest.fixture
def checkout(monkeypatch):
    """Commands name the examples from the root, on a terminal that is wide enough for its columns."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("question", READING, ids=lambda question: question["ask"])
def test_the_text_answers(checkout, question):
    text = read_text(question)
    assert find_answer(text, question["answer"], question.get("lines", LINES)), text


def test_there_are_enough_questions_of_every_kind_of_text():
    assert len(READING) >= 25
    assert len({question["ask"] for question in READING}) == len(READING)
    pages = {question["page"] for question in READING if "page" in question}
    assert "README.md" in pages
    assert len(pages - {"README.md"}) >= 5
    kinds = [next(kind for kind in ("page", "command", "rule") if kind in question) for question in READING]
    assert min(map(kinds.count, ("page", "command", "rule"))) >= 5
    assert all(question["known"] and len(question["answer"]) > 1 for question in READING)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it is\n  5 %\nof the step", True),
        ("5 %\n\n\n\n\n\n\nstep", False),
        ("5 % of it", False),
    ],
)
def test_an_answer_is_near_its_words(text, found):
    assert find_answer(text, ["5 %", "Step"]) is found
