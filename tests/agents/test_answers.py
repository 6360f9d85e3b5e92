"""Parts of answers that a session over small examples does not reach."""

import ast
import json
from pathlib import Path

import pytest

from tracekit.agents import bounds, statements, tools
from tracekit.agents.bounds import limit_answer_rows, limit_sentences, truncate_answer_cell, truncate_answer_text
from tracekit.agents.roots import resolve_roots
from tracekit.agents.working import format_work_error
from tracekit.model.errors import TracekitError

PACKAGE = Path(__file__).parents[2] / "tracekit"


def test_a_long_text_ends_with_a_line_and_says_how_to_have_the_rest():
    text = "\n".join(f"line {number}" for number in range(9_999))
    cut = truncate_answer_text(text, "Ask for less.", 500)
    assert len(cut) <= 500
    *lines, last = cut.splitlines()
    assert text.startswith("\n".join(lines) + "\n")
    assert last == f"… cut at 500 of {len(text):,} characters. Ask for less."
    assert len(truncate_answer_text("x" * 999, "", 500)) <= 500
    assert truncate_answer_text(text, "", len(text)) == text


def test_rows_are_as_many_as_fit_and_at_least_one():
    wide = ("x" * bounds.MAX_CELL_CHARACTERS,) * 10
    rows = limit_answer_rows([wide] * 400, 400)
    assert 1 < len(rows) < 400
    assert len(json.dumps(rows)) <= bounds.MAX_ROW_CHARACTERS + 1_000
    assert limit_answer_rows([("x" * bounds.MAX_CELL_CHARACTERS,) * 1_000] * 2, 2) == (
        ("x" * bounds.MAX_CELL_CHARACTERS,) * 1_000,
    )
    assert len(limit_answer_rows([(1,)] * 9_999, 9_999)) == bounds.MAX_ANSWER_ROWS
    assert limit_answer_rows([], 5) == ()


def test_a_long_cell_is_cut_and_stays_apart_from_others():
    first, second = truncate_answer_cell("x" * 1_000 + "a"), truncate_answer_cell("x" * 1_000 + "b")
    assert first != second
    assert len(first) == len(second) == bounds.MAX_CELL_CHARACTERS
    assert (truncate_answer_cell(3), truncate_answer_cell(None), truncate_answer_cell("abc")) == (3, None, "abc")


def test_a_long_list_says_how_many_more_there_are():
    assert limit_sentences(["a"] * 5, 3) == ("a", "a", "a", "… and 2 more")


def test_errors_never_show_a_stack_nor_what_an_internal_error_holds():
    assert format_work_error(TracekitError("what", "do this")) == "what\ntry: do this"
    assert format_work_error(TracekitError("what")) == "what"
    assert format_work_error(KeyError("/secret/path")).splitlines()[0] == "internal error: KeyError"
    assert "/secret" not in format_work_error(KeyError("/secret/path"))
    assert format_work_error(MemoryError()).startswith("memory ran out\n")
    assert format_work_error(PermissionError(13, "Permission denied", "x.json")) == "x.json: Permission denied"
    assert format_work_error(TracekitError("a\nb\x1b[31m")) == "a\\nb\\x1b[31m"


def test_the_hint_for_memory_names_no_option_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(statements, "MEMORY_BYTES", 64 << 20)
    large = "SELECT list(range::VARCHAR || repeat('x', 100)) FROM range(100000000)"
    with pytest.raises(TracekitError, match="memory ran out") as caught:
        statements.answer_sql(resolve_roots([str(tmp_path)]), statements.SqlArguments(".", large))
    assert caught.value.hint == "select fewer columns or rows, or aggregate before joining"


def test_a_name_that_is_no_text_can_be_sent(tmp_path, monkeypatch):
    (tmp_path / "r\udcff").mkdir()
    roots = resolve_roots([tmp_path])
    monkeypatch.chdir(roots.base)
    text, data = tools.call_tool(roots, "paths", {"path": tmp_path.name})
    text.encode("utf-8")
    json.dumps(data, ensure_ascii=False).encode("utf-8")
    assert data["entries_total"] == 1


def test_a_large_table_is_given_in_parts_that_fit(monkeypatch):
    roots = resolve_roots([PACKAGE.parent / "examples"])
    monkeypatch.chdir(roots.base)
    monkeypatch.setattr(bounds, "MAX_ROW_CHARACTERS", 1_000)
    _, part = tools.call_tool(roots, "tables", {"path": "verl_cpu", "table": "values", "limit": 500})
    assert 0 < len(part["rows"]) < 100
    assert part["next_offset"] == len(part["rows"])


def test_the_library_of_the_protocol_is_imported_by_one_module():
    importers = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            if {name.split(".")[0] for name in names} & {"mcp", "mcp_types", "anyio", "pydantic"}:
                importers.append(path.relative_to(PACKAGE).as_posix())
    assert set(importers) == {"agents/server.py"}


@pytest.mark.parametrize("tool", tools.TOOLS, ids=lambda tool: tool.name)
def test_a_tool_says_what_it_does_in_few_words(tool):
    assert 40 < len(tool.description) < 700
    assert tool.description.endswith(".")
