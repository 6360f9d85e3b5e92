"""The shape of the house: imports point one way, what is written is registered, additions are small."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.analyses import ANALYSES
from tracekit.readers import READERS
from tracekit.render import RENDERERS

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "examples" / "simulated_gpu" / "outputs" / "profile"
MOST_LINES = 600


@pytest.fixture
def house(tmp_path):
    """A copy of both packages that may be spoiled."""
    for package in ("tracekit", "capture"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def python(house, *args):
    environment = {**os.environ, "PYTHONPATH": str(house), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=house, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def contracts(house):
    code = "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"
    return python(house, "-c", code)


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


def test_the_contracts_hold_as_things_are(house):
    done = contracts(house)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("tracekit/render/grid.py", "import tracekit.cli", "nine layers"),
        ("tracekit/render/grid.py", "import tracekit.model.tables", "renderers do not know"),
        ("tracekit/readers/chrome/__init__.py", "import tracekit.analyses", "nine layers"),
        ("tracekit/analyses/ops/copies.py", "import tracekit.analyses.time.steps", "questions do not know"),
        ("tracekit/model/tables/table.py", "import tracekit.model.trace", "no package has a cycle"),
        ("capture/config.py", "import tracekit.model.errors", "share files, not code"),
        ("tracekit/stray.py", "", "nine layers"),
    ],
)
def test_a_wrong_import_breaks_its_contract(house, file, line, contract):
    path = house / file
    code = path.read_text() if path.exists() else '"""A module in no layer."""\n'
    path.write_text(f"{code}\n{line}\n")
    done = contracts(house)
    assert done.returncode != 0
    if line:
        assert re.search(rf"{re.escape(contract)}.*BROKEN", done.stdout), done.stdout
    else:
        assert "stray" in done.stdout + done.stderr


def modules_that_define(package, *names):
    """The modules of a package with a top-level function of each name (a pattern)."""
    found = set()
    for path in sorted((ROOT / "tracekit" / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if all(any(re.fullmatch(name, function) for function in functions) for name in names):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.add(".".join(parts).removesuffix(".__init__"))
    return found


def test_every_reader_is_registered():
    found = modules_that_define("readers", "sniff", "read")
    assert found == {reader.sniff.__module__ for reader in READERS}
    assert found == {reader.read.__module__ for reader in READERS}


def test_every_analysis_is_registered():
    found = modules_that_define("analyses", "measure", "judge")
    assert found == {analysis.measure.__module__ for analysis in ANALYSES}
    assert found == {analysis.judge.__module__ for analysis in ANALYSES}
    assert len({analysis.id for analysis in ANALYSES}) == len(ANALYSES)


def test_every_renderer_is_registered():
    found = modules_that_define("render", "render_.*")
    assert found == {renderer.render.__module__ for renderer in RENDERERS}


def test_no_source_file_is_too_long_to_be_read_at_once():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_bytes().splitlines())
        for package in ("tracekit", "capture")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".pyi", ".c", ".h")
    }
    assert len(lengths) > 60
    assert {f: n for f, n in lengths.items() if n > MOST_LINES} == {}


ANALYSIS = '''"""How many host ops are there?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.analyses import Analysis
from tracekit.model.report import Finding, Metric, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace

OP_COUNTS = Table(
    "op_counts",
    "one process in one source",
    {**KEYS, "op_count": Column("int64", "Rows of host_ops.")},
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The count of one process."""
    return {"op_counts": {"op_count": [len(trace.get_or_empty("host_ops"))]}}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """The sum over all sources; a finding where it is too much."""
    total = int(measured["op_counts"]["op_count"].sum())
    finding = Finding("many-ops", "info", f"{total} ops", "record less")
    return Section(
        ANALYSIS.id,
        ANALYSIS.title,
        metrics=(Metric("host_ops", total, "count"),),
        findings=(finding,) if total > thresholds.of("many-ops")["op_count"] else (),
    )


ANALYSIS = Analysis(
    id="host-op-count",
    title="How many host ops are there?",
    reads=("host_ops",),
    writes=(OP_COUNTS,),
    rules=("many-ops",),
    thresholds={"many-ops": {"op_count": 100}},
    measure=measure,
    judge=judge,
)
'''


def test_a_new_question_with_its_table_threshold_and_rule_is_one_file_its_page_and_one_line(house):
    (house / "tracekit/analyses/trust/host_op_count.py").write_text(ANALYSIS)
    page = "# R99 many-ops: More ops than anybody reads\n\nOps.\n\n**Cause.** Ops.\n"
    (house / "tracekit/analyses/trust/many-ops.md").write_text(page)
    registry = house / "tracekit/analyses/__init__.py"
    edit(registry, '    "ops.copies",\n', '    "ops.copies",\n    "trust.host_op_count",\n')
    code = (
        "import sys, tracekit; report = tracekit.analyze(sys.argv[1]);"
        "section = next(s for s in report.sections if s.id == 'host-op-count');"
        "print(section.status, section.metrics[0].value, tracekit.__file__);"
        "rules = next(s for s in report.sections if s.id == 'rules');"
        "assert [f.rule for f in section.findings] == ['many-ops'];"
        "assert ('R99', 'many-ops', 'fired') in [row[:3] for row in rules.sheets[0].rows];"
        "assert ('many-ops', 'op_count', '100') in rules.sheets[1].rows;"
        "print('How many host ops are there?' in tracekit.render(report, 'html'))"
    )
    done = python(house, "-c", code, PROFILE)
    assert done.returncode == 0, done.stderr
    told, shown = done.stdout.splitlines()
    status, count, file = told.split()
    assert (status, shown) == ("ok", "True")
    assert int(count) > 100
    assert Path(file).is_relative_to(house)
    assert python(house, "-m", "tracekit", "explain", "r99", "--format", "md").stdout == page
    assert "Rows of host_ops." in python(house, "-m", "tracekit", "tables", "op_counts").stdout
    assert contracts(house).returncode == 0


RENDERER = '''"""A report as its title, loudly."""

from __future__ import annotations

from tracekit.render.options import RenderOptions
from tracekit.model.report import Report


def render_shout(report: Report, options: RenderOptions) -> str:
    """One line."""
    return f"{report.title.upper()}!\\n"
'''


@pytest.mark.slow
def test_a_new_output_is_one_file_and_one_line(house):
    (house / "tracekit/render/shout.py").write_text(RENDERER)
    registry = house / "tracekit/render/__init__.py"
    line = '    Renderer("shout", "shout", (".shout",)),\n'
    edit(registry, "RENDERERS: tuple[Renderer, ...] = (\n", f"RENDERERS: tuple[Renderer, ...] = (\n{line}")
    done = python(house, "-m", "tracekit", "analyze", PROFILE, "-q", "--export", "shout=-")
    assert (done.returncode, done.stdout) == (0, f"{str(PROFILE).upper()}!\n")
    done = python(house, "-m", "tracekit", "analyze", PROFILE, "-q", "-o", house / "a.shout")
    assert (house / "a.shout").read_text().endswith("!\n"), done.stderr
    assert contracts(house).returncode == 0
