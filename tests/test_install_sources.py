"""Until an index has them, nothing may ask one for tracekit or capture by name: anybody could register the name there."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.pipeline.run import Options, analyze_uncached

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", "capture", "tracekit", ".github", ".ci")
FILES = ("README.md", "CONTRIBUTING.md", "action.yml", "Dockerfile", "Makefile", "mkdocs.yml", "pyproject.toml")  # fmt: skip
SUFFIXES = {".md", ".py", ".sh", ".yml", ".yaml", ".toml", ".ipynb", ".html", ".txt", ""}
INSTALLERS = re.compile(
    r"\b(?:pip3?|uv pip)[ '\",]+(?:install|download|wheel)\b(?P<packages>.*)"
    r"|\buv (?:add|tool (?:install|run)) (?P<added>.*)"
    r"|\b(?:uvx|pipx)\b(?P<run>.*)"
)
OURS = re.compile(r"tracekit(?:[-_.]rl)?(?:[-_.]capture)?(?:\[[\w,{}]*\])?(?:[=<>~!]=?[\w.]*)?\Z")
DEFAULT = re.compile(r"^\s*(?:default|package|TRACEKIT|TK_PACKAGE)\s*[:=]\s*(?P<value>\S+)")


def words_of(text):
    """The words of a command line up to where the next command, or the prose around it, begins."""
    command = re.split(r"&&|\|\||;|`|#(?!subdirectory)|\\n|[()]", text)[0]
    return [word.strip("\"',.") for word in command.split()]


def asked_of_an_index(line):
    """The names of ours that a line asks an index for."""
    named = []
    for found in INSTALLERS.finditer(line):
        words = words_of(found["packages"] or found["added"] or found["run"])
        if "--no-index" in words:
            continue
        if found["run"] is not None:  # `uvx --from X tracekit` runs the command of X
            places = [i + 1 for i, word in enumerate(words) if word in ("--from", "--spec")]
            words = [words[i] for i in places if i < len(words)] or words[:1]
        named += [word for word in words if OURS.match(word)]
    default = DEFAULT.match(line)
    if default:
        value = default["value"].strip("\"'")
        # An input of the action has the plain name as the name of a file.
        if OURS.match(value) and ("default" not in line or value != "tracekit"):
            named.append(value)
    return named


def texts():
    """Every text of this project that tells people or machines what to install."""
    paths = [ROOT / name for name in FILES]
    for folder in FOLDERS:
        # What an installation leaves there is not ours to write.
        found = (ROOT / folder).rglob("*")
        paths += (p for p in found if not any(part.endswith(".egg-info") for part in p.parts))
    for path in sorted(paths):
        if path.is_file() and path.suffix in SUFFIXES and path.stat().st_size < 1 << 20:
            yield path, path.read_text(encoding="utf-8", errors="replace")


def test_no_text_asks_an_index_for_what_anybody_could_register():
    asked = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if asked_of_an_index(line)
    ]
    assert asked == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install tracekit-rl",
        "pip install 'tracekit-rl[sql]'",
        "\"pip install 'tracekit-rl[{name}]'\"",
        "With `pip install tracekit-rl-capture` on every node",
        "pip install --force-reinstall tracekit_rl==0.1.0 && tracekit demo",
        "pip uninstall -y tracekit tracekit-rl && pip install tracekit-rl`",
        "uvx --from tracekit-rl tracekit demo  # nothing installed",
        "pipx run --spec tracekit-rl tracekit demo",
        "uvx tracekit demo",
        "uv add tracekit-rl",
        "uv tool install tracekit",
        "    default: tracekit-rl",
        "    TRACEKIT: tracekit-rl # what pip installs",
    ],
)
def test_such_a_line_is_found(line):
    assert asked_of_an_index(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install . && tracekit analyze outputs/profile",
        "pip install '.[sql]' (in a checkout of tracekit)",
        "pip install PATH/TO/tracekit/capture   # tracekit-rl-capture",
        "pip install 'git+https://HOST/OWNER/tracekit@COMMIT#subdirectory=capture'",
        "pip install ./capture[torch] ray",
        "uvx --from PATH/TO/tracekit tracekit demo",
        "pip install --find-links dist --no-index --no-deps tracekit-rl",
        "pip uninstall -y tracekit tracekit-rl && pip install .",
        "pip install duckdb",
        "    TRACEKIT: ./tracekit",
        '    default: ""',
        "    default: tracekit.toml",
    ],
)
def test_others_are_not(line):
    assert not asked_of_an_index(line)


def strings_of(path):
    """The text of every string of a module, parts that are joined later as one, with `x` in place of a value."""
    inner = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
            yield " ".join(side for side in sides if isinstance(side, str))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def test_no_string_of_the_programs_asks_an_index():
    """Advice of findings and hints of errors run over several lines of source, which the test of texts reads one by one."""
    paths = [path for folder in ("tracekit", "capture") for path in (ROOT / folder).rglob("*.py")]
    texts = [(path, text) for path in paths for text in strings_of(path)]
    assert sum("pip install" in text for _, text in texts) >= 5
    asked = [(path.name, text) for path, text in texts if any(map(asked_of_an_index, text.splitlines()))]
    assert asked == []


def test_a_string_over_several_lines_is_read_as_one(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        """hint = (\n    "pip install "\n    "tracekit-rl"\n)\nother = f"pip install 'tracekit-rl[{hint}]'"\n"""
    )
    assert [bool(asked_of_an_index(text)) for text in strings_of(path)] == [True, True]


def test_no_finding_of_an_example_or_a_recording_asks_an_index():
    """What findings advise, in the words of the report and not of the source."""
    folders = ("examples/simulated_gpu", "examples/simulated_memory/leaking", "examples/verl_cpu")
    names = ("item", "unfused_attention", "unfused_optimizer", "pageable", "empty_cache", "fp32")
    recordings = [f"tests/data/gpu/pairs/{name}.pt.trace.json.xz" for name in names]
    advice = []
    for path in (*folders, *recordings, "tests/data/gpu/snapshots/out_of_memory.pickle"):
        report = analyze_uncached(ROOT / path, Options(jobs=1)).report
        advice += [finding.advice for finding in report.findings]
        advice += [command for recording in report.recordings for command in (recording.command,)]
    assert len(set(advice)) >= 8
    assert [text for text in advice if asked_of_an_index(text)] == []


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("duckdb", ("sql", "examples/simulated_gpu", "SELECT 1")),
        ("matplotlib", ("analyze", "examples/simulated_gpu", "--plots", "pictures")),
        ("pyarrow", ("analyze", "examples/simulated_gpu", "--export", "parquet=tables")),
        ("fsspec", ("analyze", "s3://bucket/profile")),
        ("ray", ("analyze", "examples/simulated_gpu", "--engine", "ray")),
        ("mcp", ("mcp", "--root", ".")),
    ],
)
def test_a_hint_on_what_is_missing_asks_no_index(tmp_path, module, arguments):
    """Run without an extra: the error says how to install it, from a checkout."""
    script = (
        "import sys; from importlib.machinery import PathFinder as finder; find = finder.find_spec\n"
        "def find_others(name, path=None, target=None):\n"
        f"    return None if name.split('.')[0] == {module!r} else find(name, path, target)\n"
        "finder.find_spec = find_others\n"
        "from tracekit.cli import main; main(sys.argv[1:])"
    )
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in arguments]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRACEKIT_NO_CACHE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert "install" in done.stderr
    assert not any(map(asked_of_an_index, done.stderr.splitlines()))
    assert not asked_of_an_index(" ".join(done.stderr.split()))


@pytest.mark.parametrize("name", ["verl", "verl-omni", "nemo-rl", "ray", "torch", "rollout", "nsys", "memory", "ci"])  # fmt: skip
def test_every_guide_shows_how_to_install_without_an_index(name):
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")
    assert "git+https://HOST/OWNER/tracekit@COMMIT" in text
    assert re.search(r"(PATH/TO/tracekit|\./capture|install\.md)", text)
