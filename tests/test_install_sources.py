"""Until an index has them, nothing may ask one for tracekit or capture by name: anybody could register the name there."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["verl", "verl-omni", "nemo-rl", "ray", "torch", "rollout", "nsys", "memory", "ci"])  # fmt: skip
def test_every_guide_shows_how_to_install_without_an_index(name):
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")
    assert "git+https://HOST/OWNER/tracekit@COMMIT" in text
    assert re.search(r"(PATH/TO/tracekit|\./capture|install\.md)", text)
