"""What README and the pages of docs/ show is so: commands print it, Python runs, links and pictures are there.

In what a command prints `…` stands for any lines where it is alone, and for the rest of the line at the end of one.
A block marked `python` is run with those above it on its page; one marked `py` needs what is not here, and only has to be Python.
"""

import os
import re
import shlex
import types
from itertools import chain
from pathlib import Path

import click
import pytest
from command_line import invoke

import capture.ray
from capture.steps import StepPlan
from tracekit.analyses import ANALYSES
from tracekit.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}


def blocks(page, language):
    """The text of every block in a language, and of the block `text` that directly follows it (None without)."""
    pattern = rf"```{language}\n(.*?)```(?:\n```text\n(.*?)```)?"
    return re.findall(pattern, PAGES[page], re.DOTALL)


def sessions(page):
    """(arguments, the lines shown below the command) of every console block, in order."""
    for block, _ in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            name, *arguments = shlex.split(command)
            assert name == "tracekit"
            yield arguments, shown.rstrip("\n")


def as_pattern(shown):
    """A pattern in which a line `…` matches any lines, also none, and `…` at the end of a line the rest of it."""
    lines = []
    for line in shown.split("\n"):
        begin = line.removesuffix("…")
        rest = ".*" if line != begin else ""
        lines.append(r"(?:.*\n)*?" if line == "…" else f"{re.escape(begin)}{rest}\\n")
    return "".join(lines)


def matches(shown, output):
    output = "\n".join(line.rstrip() for line in output.split("\n"))
    return re.fullmatch(as_pattern(shown) + r"\s*" if shown else r"\s*", output)


@pytest.fixture
def checkout(tmp_path, monkeypatch, made_once):
    """An empty directory to work in, with the examples of the repository in it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if list(sessions(page))])
def test_every_command_of_a_page_prints_what_it_shows(page, checkout):
    for arguments, shown in sessions(page):
        result = invoke(*arguments)
        assert result.exit_code == 0, (arguments, result.stderr)
        assert matches(shown, result.stdout), (arguments, result.stdout)


def test_readme_shows_the_three_answers():
    assert [arguments[0] for arguments, _ in sessions("README.md")] == ["analyze", "analyze", "compare"]


def test_what_is_shown_has_to_be_printed():
    assert matches("a\n…\nd", "a\nb\nc\nd\n")
    assert matches("a b…", "a b c\n")
    assert not matches("a\n…\nd", "a\nb\nc\n")
    assert not matches("a b…", "a\nb c\n")
    assert not matches("", "a\n")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_python_of_a_page_runs(page, checkout, capsys):
    known = {}
    for code, shown in blocks(page, "python"):
        exec(compile(code, page, "exec"), known)
        printed = capsys.readouterr().out
        if shown:
            assert matches(shown.rstrip("\n"), printed), printed


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "py")])
def test_python_that_is_not_run_is_python(page):
    for code, _ in blocks(page, "py"):
        compile(code, page, "exec")


def test_the_lines_that_a_ray_job_adds_use_what_there_is():
    code = blocks("docs/guides/torch.md", "py")[-1][0]
    worker = types.SimpleNamespace(remote=lambda kind: kind)
    known = {"ray": worker, "capture": capture, "workers": [], "step": 2, "total": 2}
    known |= {name: getattr(capture, name) for name in capture.__all__}
    known |= {"StepPlan": StepPlan, "train_step": list}
    exec(code, known)
    worker = known["Worker"]()
    assert worker.profiler.check_enable()
    assert callable(worker.start_profile)


def test_the_set_up_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in PAGES.values():
        assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    assert {"demo", "check"} <= set(re.findall(r"^make ([a-z-]+)", PAGES["README.md"], re.MULTILINE))


def test_readme_fits_a_few_screens():
    assert len(PAGES["README.md"].splitlines()) <= 120


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "reports/README.md", "examples/README.md"])
def test_links_between_documents_lead_somewhere(path):
    text = (ROOT / path).read_text()
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
        assert ((ROOT / path).parent / target).exists(), target


PICTURES = {
    "gpu-time.svg": "gpu-time-gpu-time.svg",
    "idle-blame.svg": "idle-idle-blame.svg",
    "stages.svg": "steps-gantt-1.svg",
}
"""Every drawn picture of docs/, and which of the report of examples/simulated_gpu it is."""

PAGE_PICTURES = {"page-light.png": 1280, "page-dark.png": 1280, "page-phone.png": 390, "page-print.png": 1000}
"""The pictures of its page, which `make pictures` takes, and how wide they are."""


def words_of(picture):
    """All that a picture says, in the order in which it is drawn."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(), re.DOTALL)


def test_the_pictures_are_those_of_the_example(checkout):
    assert {path.name for path in (DOCS / "pictures").iterdir()} == {*PICTURES, *PAGE_PICTURES}
    assert invoke("analyze", "examples/simulated_gpu", "-q", "--plots", "plots").exit_code == 0
    for name, drawn in PICTURES.items():
        fresh = Path("plots") / drawn
        if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
            (DOCS / "pictures" / name).write_bytes(fresh.read_bytes())
        assert len(words_of(fresh)) >= 8
        assert words_of(DOCS / "pictures" / name) == words_of(fresh), name


def read_chunks(picture):
    """The chunks of a PNG file as (kind, content)."""
    at = 8
    while at < len(picture):
        size = int.from_bytes(picture[at : at + 4], "big")
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        at += size + 12


def test_the_pictures_of_the_page_are_small_shown_and_of_the_example(checkout):
    assert invoke("analyze", "examples/simulated_gpu", "-q", "-o", "report.html").exit_code == 0
    answer = re.search(r"<h1>(.*?)</h1>", Path("report.html").read_text())[1]
    shown = {
        name
        for text in PAGES.values()
        for name in re.findall(r"!\[[^]]{20,}\]\((?:docs/)?pictures/(page-\w+\.png)\)", text)
    }
    assert shown == set(PAGE_PICTURES)
    assert re.findall(r"!\[.*\]\((.*)\)", PAGES["README.md"])[0] == "docs/pictures/page-light.png"
    for name, width in PAGE_PICTURES.items():
        picture = (DOCS / "pictures" / name).read_bytes()
        assert len(picture) <= 150_000, name
        chunks = dict(read_chunks(picture))
        assert int.from_bytes(chunks[b"IHDR"][:4], "big") == width, name
        assert chunks[b"iTXt"].rpartition(b"\0")[2].decode() == answer, f"{name} is old: make pictures"


OF_OTHERS = {
    "--capture-range", "--capture-range-end", "--cpuctxsw", "--cuda-graph-trace", "--from",
    "--contents", "--include-blobs", "--json", "--nproc-per-node", "--pid", "--rounds", "--spec", "--trace", "--type",
    "--enable-request-time-stats-logging", "--otlp-traces-endpoint", "--query-gpu",
}  # fmt: skip
"""Options of nsys, torchrun, pipx, uvx, capture, the benchmarks, SGLang, vLLM, nvidia-smi and py-spy."""


def test_options_and_questions_that_pages_name_are_there():
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    parameters = chain.from_iterable(command.params for command in (main, *commands))
    options = {name for given in parameters for name in (*given.opts, *given.secondary_opts)}
    questions = {question.id for question in ANALYSES}
    for page, text in PAGES.items():
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
        assert named <= options | OF_OTHERS, page
        assert set(re.findall(r"--(?:only|skip) ([a-z][a-z-]*)", text)) <= questions, page
