"""Every statement of SQL in README and docs/ runs, and sums windows of one kind only."""

import re
import shlex
from pathlib import Path

import duckdb
import pytest

from tracekit.pipeline.sql_session import open_sql_session
from tracekit.sql import recipes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/simulated_gpu"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```sql\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]


def list_statements():
    """The statements that pages pass to `tracekit sql`, and those with a name."""
    for page in PAGES:
        for line in re.findall(r"^(?:\$ )?tracekit sql .*", page.read_text(), re.MULTILINE):
            yield from (word for word in shlex.split(line, comments=True) if word.upper().startswith("SELECT "))
    yield from map(recipes.read_recipe, recipes.list_recipes())


@pytest.mark.parametrize("statement", BLOCKS)
def test_a_block_of_sql_answers_over_the_exported_tables(statement, tmp_path, call):
    assert call("analyze", EXAMPLE, "-q", "--export", f"parquet={tmp_path}").exit_code == 0
    assert "'DIR/" in statement
    assert duckdb.sql(statement.replace("'DIR/", f"'{tmp_path}/")).fetchall()


def test_no_statement_of_a_page_mixes_windows():
    statements = list(list_statements())
    assert len(statements) > 40
    session = open_sql_session(lambda names, with_step: {})
    assert session.list_warnings("SELECT sum(idle_ns) FROM idle")
    for statement in statements:
        assert session.list_warnings(statement) == [], statement


def test_docs_have_statements_to_run():
    assert BLOCKS
    assert "idle_by_step" in (ROOT / "docs/sql.md").read_text()
