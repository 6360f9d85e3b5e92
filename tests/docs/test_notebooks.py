"""The notebooks run from top to bottom where they lie, and are committed without what they gave."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs/notebooks"
TOLD = {
    "before_after.ipynb": ["improvement", "1.62x faster", "aten::linear", "1.62× slower"],
    "first_look.ipynb": ["pageable-copies", "->", "exposed-communication"],
}
"""By notebook, in this order, some of what it prints."""


def cells(name, kind):
    notebook = json.loads((NOTEBOOKS / name).read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_every_notebook_is_here():
    assert sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")) == sorted(TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_a_notebook_runs_and_tells_what_it_promises(name, monkeypatch, capsys, made_once):
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setenv("MPLBACKEND", "agg")
    known = {}
    for cell in cells(name, "code"):
        exec(compile("".join(cell["source"]), name, "exec"), known)
    printed = capsys.readouterr().out
    places = [printed.index(text) for text in TOLD[name]]
    assert places == sorted(places)


@pytest.mark.parametrize("name", TOLD)
def test_no_output_is_committed(name):
    for cell in cells(name, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert "".join(cells(name, "markdown")[0]["source"]).startswith("# ")
