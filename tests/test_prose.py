"""Phrases that readers stumble over are found, and their number only falls (`make prose`)."""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest
from prose import ROOT, TERMS, count_groups, find_phrases, load_terms, lower_budgets, read_texts, split_strings

PHRASES, REQUIRED, BUDGETS = load_terms()
GROUPS = count_groups()

FIRST_PAGES = (
    *("README.md", "CONTRIBUTING.md", "examples/README.md", "examples/ci/README.md"),
    *(f"docs/{name}.md" for name in ("index", "install", "tour", "usage", "compare", "method", "glossary")),
)
"""Pages with at most 3 habits per 1,000 words each."""

SENTENCES = {
    "It shows what the screen does not show.": "It shows the details hidden by default.",
    "Launches of which that is known": "Launches with a known thread",
    "It is told which ranks; a log tells.": "It lists the ranks; the log names them.",
    "A file that is cut says so.": "A truncated file is reported.",
    "The table stands below the picture.": "The table is below the picture.",
    "A recording is no step.": "A recording is not a step.",
    "Nobody marks these.": "The program marks none.",
    "What comes after the step goes to the next one.": "Work after the step belongs to the next step.",
    "The folder holds runs.": "The folder contains runs.",
    "It is measured anew; that will do.": "It is measured again; that is enough.",
    "Besides, there are logs.": "There are also logs.",
    "It is cut so that it fits.": "It is cut to fit.",
    "Show three runs a side, a row a stage, a file each.": "Show three runs per side, one row per stage, one file each.",
    "Anything else is an error.": "Any other value is an error.",
    "What held the GPU back": "GPU idle time by cause",
    "Careful: one run": "Caveat: one run",
    "Worth fixing first": "Top issues",
    "Saving up to, per step": "Max saving per step",
    "→ as for 1": "→ same fix as #1",
    "in no stage 3.7 %": "outside any stage 3.7 %",
    "most own work rank 1 (+52 %)": "slowest rank: rank 1 (+52 % busy)",
    "The host is silent after host silence.": "The host records no activity.",
    "not begun, unknown why": "launched but not started (cause unknown)",
    "no finding is about the 10 % idle time": "10 % idle time is unexplained",
    "communication that no compute hides": "communication not overlapped with compute (exposed)",
    "Copies HtoD and DtoH": "H2D and D2H copies",
    "Copies stand alone for 4.8 %.": "Exposed copies: 4.8 %.",
    "1.62 by means, 1.61 by medians": "mean ratio 1.62, median ratio 1.61",
    "from ms  to ms": "95 % CI low  95 % CI high",
    "That nothing changed by 3 % takes 100 runs.": "Confirming a change below 3 % needs 100 runs.",
    "Does it stay within the gate?": "Gate result",
    "Hold a profile to its budgets": "Check a profile against budgets",
    "Answer agents, by the Model Context Protocol": "MCP server",
    "one pause between iterations": "an idle gap between iterations",
    "launches less; make that shorter": "launch fewer kernels; shorten it",
    "the first step after the profiler began": "warm-up step",
    "The clock was mended.": "The clock was fixed.",
    "Record three a side.": "Record three per side.",
    "Nothing; raises if it is wrong.": "Raise an error for a wrong value.",
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_phrase_is_found_in_a_sentence_and_not_in_its_rewrite(sentence):
    assert find_phrases([(1, sentence)], PHRASES, "docstrings", "a.py")
    assert find_phrases([(1, SENTENCES[sentence])], PHRASES, "docstrings", "a.py") == []


def test_every_phrase_has_a_sentence():
    found = {hit.phrase for hit in find_phrases([(1, text) for text in SENTENCES], PHRASES, "docstrings", "a.py")}
    assert [phrase.pattern.pattern for phrase in PHRASES if phrase not in found] == []


def test_a_phrase_of_docstrings_is_allowed_on_pages():
    assert find_phrases([(1, "Nothing; done.")], PHRASES, "pages", "a.md") == []


def test_fences_and_tags_are_passed_over_and_lines_stay_true(tmp_path):
    (tmp_path / "a.md").write_text("Text.\n```sh\nnobody else\n```\nA file that says so.\n")
    (tmp_path / "a.sql").write_text("SELECT 1\n-- Nobody\n")
    cells = [{"cell_type": "code", "source": ["told"]}, {"cell_type": "markdown", "source": ["It ", "says so."]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "a.html").write_text('<p class="else">\nIt is told.</p>\n')
    places = [
        (hit.line, hit.words)
        for name, kind in (("a.md", "pages"), ("a.sql", "pages"), ("a.ipynb", "pages"), ("a.html", "templates"))
        for hit in find_phrases(read_texts(tmp_path / name)[kind], PHRASES, kind, name)
    ]
    assert places == [(5, "says so"), (2, "Nobody"), (1, "says so"), (2, "told")]


def test_messages_and_docstrings_are_split():
    code = 'def f(a):\n    """Do it."""\n    print(f"told {a} of {g(\'one two three\')} it", "two words")\nX = 1\n"""Value of\nX."""\n'
    texts = split_strings(ast.parse(code))
    assert sorted(texts["docstrings"]) == [(2, "Do it."), (5, "Value of\nX.")]
    assert sorted(texts["strings"]) == [(3, "one two three"), (3, "told … of … it")]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.kind}:{group.files}")
def test_a_budget_equals_the_count(group):
    """`python tests/prose.py --lower` lowers budgets; where a count rose, rewrite: `python tests/prose.py FILE`."""
    assert group.words > 0
    assert len(group.hits) == group.budget


def test_every_file_is_in_one_group_of_its_kind():
    for kinds, files in (
        (
            ("pages",),
            (
                "*.md",
                "docs/**/*.md",
                "docs/**/*.ipynb",
                "examples/**/*.md",
                "capture/**/*.md",
                "tracekit/**/*.md",
                "tracekit/**/*.sql",
            ),
        ),
        (("strings", "docstrings"), ("tracekit/**/*.py", "capture/**/*.py")),
        (("templates",), ("tracekit/**/*.html",)),
    ):
        expected = {path for pattern in files for path in ROOT.glob(pattern)}
        for kind in kinds:
            counts = Counter(path for pattern in BUDGETS[kind] for path in ROOT.glob(pattern))
            assert expected <= set(counts)
            assert set(counts.values()) == {1}


def test_lowering_never_raises_a_budget(tmp_path):
    (tmp_path / "a.md").write_text("Nobody else.\n")
    (tmp_path / "b.py").write_text('"""A file is told."""\n')
    terms = tmp_path / "terms.toml"
    head = TERMS.read_text().partition("[budgets.pages]")[0]
    rows = '[budgets.pages]\n"a.md" = {}\n\n[budgets.strings]\n"b.py" = 7\n\n[budgets.docstrings]\n"b.py" = 0\n'
    terms.write_text(head + rows.format(7))
    lower_budgets(count_groups(tmp_path, terms), terms)
    assert terms.read_text() == head + rows.format(2).replace("7", "0")


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_first_pages_read_like_good_field_docs(page):
    texts = read_texts(ROOT / page)["pages"]
    habits = [hit for hit in find_phrases(texts, PHRASES, "pages", page) if hit.phrase.is_habit]
    words = sum(len(text.split()) for _, text in texts)
    assert 1000 * len(habits) / words <= 3, habits


def test_pages_use_the_terms_that_people_search_for():
    for page, terms in REQUIRED.items():
        text = Path(ROOT / page).read_text()
        assert [term for term in terms if term.lower() not in text.lower()] == [], page
