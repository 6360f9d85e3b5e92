"""README's commands are run and print what it shows; `…` on a line of its own stands for any lines."""

import os
import re
import shlex
import shutil
import types
from pathlib import Path

import pytest
from command_line import invoke

import capture.ray
from capture.steps import StepPlan
from tracekit.analyses import ANALYSES, measured_tables
from tracekit.model.tables import RAW

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SCRATCH = Path("/tmp/tracekit-readme")


def sessions():
    """(command, the lines shown below it) of every console block, in order."""
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown.rstrip("\n")


def as_pattern(shown):
    """A pattern in which a line `…` matches any lines, also none."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line) + r"\n" for line in shown.split("\n")
    ]
    return "".join(lines)


def test_every_command_of_the_readme_prints_what_it_shows(monkeypatch, made_once):
    monkeypatch.chdir(ROOT)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir()
    found = list(sessions())
    assert len(found) >= 8
    for command, shown in found:
        name, *arguments = shlex.split(command)
        assert name == "tracekit"
        result = invoke(*arguments)
        assert result.exit_code == 0, (command, result.stderr)
        output = "\n".join(line.rstrip() for line in result.stdout.split("\n"))
        assert re.fullmatch(as_pattern(shown) + r"\s*" if shown else r"\s*", output), (
            command,
            output,
        )


def test_the_python_example_runs(monkeypatch, capsys, made_once):
    monkeypatch.chdir(ROOT)
    code, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "exposed-communication" in capsys.readouterr().out


def test_the_lines_that_a_ray_job_adds_use_what_there_is():
    _, code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    worker = types.SimpleNamespace(remote=lambda kind: kind)
    known = {"ray": worker, "capture": capture, "workers": [], "step": 2, "total": 2}
    known |= {name: getattr(capture, name) for name in capture.__all__}
    known |= {"StepPlan": StepPlan, "train_step": list}
    exec(code, known)
    worker = known["Worker"]()
    assert worker.profiler.check_enable()
    assert callable(worker.start_profile)


def test_the_set_up_commands_are_targets_of_the_makefile():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)) <= set(targets)


def table_section():
    """The README's list of tables, generated; not those of questions that other tests load."""
    written = {table for analysis in ANALYSES for table in analysis.tables}
    rows = [
        f"| `{table.name}` | {table.row} |"
        for table in (*RAW, *measured_tables())
        if table in RAW or table.name in written
    ]
    return "\n".join(["| table | a row is |", "|---|---|", *rows])


def test_the_list_of_tables_is_that_of_the_schema():
    inside = README.partition("<!-- tables -->\n")[2].partition("<!-- /tables -->")[0].strip()
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        text = (
            README.replace(inside, table_section())
            if inside
            else README.replace("<!-- tables -->\n", f"<!-- tables -->\n{table_section()}\n")
        )
        (ROOT / "README.md").write_text(text)
        pytest.skip("written anew")
    assert inside == table_section()


@pytest.mark.parametrize(
    "path", ["README.md", "CONTRIBUTING.md", "reports/README.md", "examples/README.md"]
)
def test_links_between_documents_lead_somewhere(path):
    text = (ROOT / path).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / path).parent / target).exists(), target
