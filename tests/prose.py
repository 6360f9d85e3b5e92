"""Count phrases that readers stumble over in pages, messages, docstrings and templates, against the budgets in `terms.toml`.

`python tests/prose.py` prints hits and budgets by group of files and fails where a group is above its budget.
`python tests/prose.py FILE ...` lists the hits of files. `python tests/prose.py --lower` writes lower budgets, never higher ones.
"""

import ast
import json
import re
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TERMS = Path(__file__).with_name("terms.toml")
FENCE = re.compile(r"```.*?```", re.DOTALL)
CLAUSE = re.compile(r"(?<=[.!?:;])\s+")
TAG = re.compile(r"<[^>]*>")
VALUE = "…"
"""Stands for a formatted value in the text of an f-string."""


@dataclass(frozen=True)
class Phrase:
    """A discouraged phrase, the words to write instead, and the kinds of text it applies to (empty: all)."""

    pattern: re.Pattern
    write: str
    is_habit: bool
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hit:
    """A phrase found in a file."""

    file: str
    line: int
    words: str
    phrase: Phrase


@dataclass
class Group:
    """Budget, words and hits of one kind of text in one group of files."""

    kind: str
    files: str
    budget: int
    words: int = 0
    clauses: int = 0
    hits: list[Hit] = field(default_factory=list)

    @property
    def words_per_clause(self):
        """Mean words between `.`, `:`, `;`, `!` and `?`; pieces of one or two words do not count."""
        return self.words / max(self.clauses, 1)

    @property
    def habits_per_1000(self):
        """Habits of phrase per 1,000 words."""
        return 1000 * sum(hit.phrase.is_habit for hit in self.hits) / max(self.words, 1)


def load_terms(path=TERMS):
    """Read the phrases, the required terms by page, and the budgets by kind and group."""
    data = tomllib.loads(path.read_text())
    phrases = [
        Phrase(
            re.compile(entry["pattern"], re.IGNORECASE | re.MULTILINE),
            entry["write"],
            kind == "habit",
            tuple(entry.get("only", ())),
        )
        for kind in ("habit", "term")
        for entry in data[kind]
    ]
    return phrases, data["required"], data["budgets"]


@cache
def read_texts(path):
    """Read the prose of a file: kind of text → (first line, text) of each piece."""
    source = path.read_text()
    if path.suffix == ".py":
        return split_strings(ast.parse(source))
    if path.suffix == ".md":
        return {"pages": [(1, FENCE.sub(keep_line_breaks, source))]}
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown"]
        return {"pages": [(1, "".join(cell["source"])) for cell in cells]}
    if path.suffix == ".sql":
        return {"pages": [(n, line[2:]) for n, line in enumerate(source.splitlines(), 1) if line.startswith("--")]}
    return {"templates": [(1, TAG.sub(keep_line_breaks, source))]}


def keep_line_breaks(match):
    """Replace a match by its line breaks, so line numbers stay true."""
    return "\n" * match[0].count("\n")


def split_strings(tree):
    """Split the string literals of Python code into messages (three words or more) and docstrings."""
    messages, docstrings, waiting = [], [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            continue
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.append((node.lineno, node.value.value))
            children = ()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            messages.append((node.lineno, node.value))
        elif isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
            messages.append((node.lineno, text))
            children = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
        waiting.extend(children)
    return {"strings": [piece for piece in messages if len(piece[1].split()) > 2], "docstrings": docstrings}


def find_phrases(texts, phrases, kind, file):
    """List the discouraged phrases in texts of one kind in one file, in the order of the file."""
    return sorted(
        (
            Hit(file, line + text.count("\n", 0, match.start()), " ".join(match[0].split()), phrase)
            for phrase in phrases
            if kind in (phrase.only or (kind,))
            for line, text in texts
            for match in phrase.pattern.finditer(text)
        ),
        key=lambda hit: hit.line,
    )


def count_groups(root=ROOT, terms=TERMS):
    """Count words and hits of every group of files that has a budget."""
    phrases, _, budgets = load_terms(terms)
    groups = [Group(kind, files, budget) for kind, rows in budgets.items() for files, budget in rows.items()]
    for group in groups:
        for path in sorted(root.glob(group.files)):
            texts = read_texts(path)[group.kind]
            group.words += sum(len(text.split()) for _, text in texts)
            group.clauses += sum(len(clause.split()) > 2 for _, text in texts for clause in CLAUSE.split(text))
            group.hits += find_phrases(texts, phrases, group.kind, str(path.relative_to(root)))
    return groups


def lower_budgets(groups, terms=TERMS):
    """Write the counts that are below their budgets into the file of terms."""
    text = terms.read_text()
    for group in groups:
        section, line = f"[budgets.{group.kind}]\n", f'"{group.files}" = {group.budget}\n'
        before, header, after = text.partition(section)
        if len(group.hits) < group.budget:
            after = after.replace(line, f'"{group.files}" = {len(group.hits)}\n', 1)
        text = before + header + after
    terms.write_text(text)


def list_hits(paths):
    """Print each hit of some files with its line and the words to write instead."""
    phrases = load_terms()[0]
    for path in paths:
        for kind, texts in read_texts(path).items():
            for hit in find_phrases(texts, phrases, kind, path):
                print(f'{hit.file}:{hit.line}: "{hit.words}" → {hit.phrase.write}')


def check_budgets(groups):
    """Print one row per group; report whether all are within their budgets."""
    print("hits budget  words  words/clause  habits/1,000  files")
    for group in groups:
        above = "  ← above its budget: python tests/prose.py FILE" if len(group.hits) > group.budget else ""
        print(
            f"{len(group.hits):4} {group.budget:6} {group.words:6} {group.words_per_clause:13.1f} {group.habits_per_1000:13.1f}  {group.kind}: {group.files}{above}"
        )
    return all(len(group.hits) <= group.budget for group in groups)


if __name__ == "__main__":
    if sys.argv[1:] == ["--lower"]:
        lower_budgets(count_groups())
    elif sys.argv[1:]:
        list_hits(map(Path, sys.argv[1:]))
    elif not check_budgets(count_groups()):
        sys.exit(1)
