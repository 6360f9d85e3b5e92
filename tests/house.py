"""Counts of the house: how large its packages are, how they hang together, how plain their lines are.

By hand: `python tests/house.py [DIRECTORY ...]`, each the directory of one package (`tracekit` and `capture` by default).
`test_house.py` holds the limits.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]

MAX_FUNCTION_LINES, MAX_COMPLEXITY = 60, 15

_WORDS = """
again alike alone apart at beside every found given held here kept known least made many mine most
much of one others ours own rest said shown some taken theirs there these those together told whole
"""
EMPTY_WORDS = frozenset(_WORDS.split())
"""Function words and past participles: as the name of a local they do not say what it holds."""

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PASSED_OVER = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass
class Counts:
    """Counts of one package, or of all."""

    files: int = 0
    entries: int = 0
    code_lines: int = 0
    one_importer: int = 0
    in_cycles: int = 0
    locals: int = 0
    empty_locals: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    fmt_skips: int = 0
    long_functions: list[str] = field(default_factory=list)
    complex_functions: list[str] = field(default_factory=list)

    @property
    def empty_percent(self):
        """Local names that are empty words, in percent of all."""
        return 100 * self.empty_locals / max(self.locals, 1)

    @property
    def comprehensions_per_1000(self):
        return 1000 * self.comprehensions / max(self.code_lines, 1)

    @property
    def conditionals_per_1000(self):
        """Conditional expressions per 1,000 code lines."""
        return 1000 * self.conditionals / max(self.code_lines, 1)

    def add(self, other):
        """Counts the other too, but for `entries`, which are of one directory."""
        for part in fields(self):
            if part.name != "entries":
                total = getattr(self, part.name) + getattr(other, part.name)
                setattr(self, part.name, total)


def complexity(function):
    """Cyclomatic complexity of a function as radon counts it: comprehensions, conditional expressions and boolean operators count, inner functions do not.

    >>> code = "def f(a):" + chr(10) + " return [b for b in a if b or 1] if a else 0"
    >>> complexity(ast.parse(code).body[0])
    5
    """
    return 1 + sum(map(branches, function.body))


def branches(node):
    """Branches at a node and below it, without those of functions and classes inside."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return 0
    if isinstance(node, ast.Assert):  # radon does not look into what is asserted
        return 1
    return own_branches(node) + sum(map(branches, ast.iter_child_nodes(node)))


def own_branches(node):
    """Branches of one node."""
    match node:
        case ast.Try():
            return len(node.handlers) + bool(node.orelse)
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.If() | ast.IfExp():
            return 1
        case ast.Match():
            defaults = (getattr(case.pattern, "pattern", False) is None for case in node.cases)
            return len(node.cases) - any(defaults)
        case ast.For() | ast.While() | ast.AsyncFor():
            return 1 + bool(node.orelse)
        case ast.comprehension():
            return 1 + len(node.ifs)
        case _:
            return 0


def docstring_lines(tree):
    """Numbers of the lines of all docstrings, those of constants and fields too."""
    lines = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def code_lines(text, tree):
    """How many lines hold code: blank lines, comments and docstrings do not."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in PASSED_OVER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(tree))


def count_file(path, name):
    """The counts of one file; `name` is what its functions are listed under."""
    text = path.read_text()
    tree = ast.parse(text)
    counts = Counts(files=1, code_lines=code_lines(text, tree), fmt_skips=text.count("# fmt: skip"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts.locals += 1
            counts.empty_locals += node.id in EMPTY_WORDS
        elif isinstance(node, COMPREHENSIONS):
            counts.comprehensions += 1
        elif isinstance(node, ast.IfExp):
            counts.conditionals += 1
        elif isinstance(node, FUNCTIONS):
            lines, branching = node.end_lineno - node.lineno + 1, complexity(node)
            if lines > MAX_FUNCTION_LINES:
                counts.long_functions.append(f"{name}:{node.name} ({lines} lines)")
            if branching > MAX_COMPLEXITY:
                counts.complex_functions.append(f"{name}:{node.name} ({branching})")
    return counts


def module_name(path, root):
    """The dotted name of a file of the package in `root`.

    >>> module_name(Path("a/tracekit/model/__init__.py"), Path("a/tracekit"))
    'tracekit.model'
    """
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imports_of(path, root, modules):
    """The modules of the package that a file imports, anywhere in it."""
    name = module_name(path, root)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package.split(".")[: package.count(".") + 2 - node.level])
            source = ".".join(filter(None, (start, node.module))) if node.level else node.module
            members = {f"{source}.{alias.name}" for alias in node.names}
            imported |= members & modules
            if not members <= modules:
                imported.add(source)
    return imported & modules - {name}


def import_graph(root):
    """Module → the modules of the package that it imports."""
    paths = {module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    stubs = {module_name(path, root) for path in root.rglob("*.pyi")}  # of modules written in C
    modules = set(paths) | stubs
    return {name: imports_of(path, root, modules) for name, path in paths.items()} | {
        name: set() for name in stubs
    }


def layers_of(pyproject):
    """Map each package to its height above the ground, from the contract of layers in pyproject.toml."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {
        name.strip(): height for height, row in enumerate(reversed(rows)) for name in row.split("|")
    }


def import_strings(path, root):
    """List the strings in a file that name a module of the package, with the line of each.

    An f-string counts by the text before its first value.
    """
    pattern = re.compile(rf"{root.name}(\.\w+)+\.?")
    tree = ast.parse(path.read_text())
    docstrings = docstring_lines(tree)
    return [
        (node.lineno, node.value.rstrip("."))
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.lineno not in docstrings and pattern.fullmatch(node.value)
    ]


def upward_import_strings(root, layers):
    """List the strings that name a module of an equal or a higher layer as "file:line name".

    A package may name its own children, and the package's `__init__` (above all layers) any module.
    """
    upward = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if len(parts) == 1:
            continue
        own = module_name(path, root)
        package = own if path.name == "__init__.py" else own.rpartition(".")[0]
        for line, name in import_strings(path, root):
            target = name.split(".")[1]
            if target not in layers or f"{name}.".startswith(f"{package}."):
                continue
            if layers[target] >= layers[parts[0]]:
                upward.append(f"{'/'.join(parts)}:{line} {name}")
    return upward


def reachable(graph, start):
    """What is imported by a module, directly or not; the module itself where it is in a cycle."""
    seen, waiting = set(), list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting.extend(graph[module])
    return seen


def count_house(root):
    """Counts by package, those of the whole under the directory's own name, which comes last."""
    graph = import_graph(root)
    importers = Counter(imported for modules in graph.values() for imported in modules)
    packages = defaultdict(Counts)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        counts = count_file(path, "/".join(parts))
        module = module_name(path, root)
        counts.one_importer = int(importers[module] == 1)
        counts.in_cycles = int(module in reachable(graph, module))
        if len(parts) > 1 and (root / parts[0] / "__init__.py").exists():
            package = packages[parts[0]]
            package.entries = entries(root / parts[0])
            package.add(counts)
        packages[root.name].add(counts)
    packages[root.name].entries = entries(root)
    packages[root.name] = packages.pop(root.name)
    return dict(packages)


def entries(folder):
    """How many modules and folders with modules lie directly in a folder."""
    return len({path.relative_to(folder).parts[0] for path in folder.rglob("*.py")})


COLUMNS = {
    "files": "files",
    "entries": "entries",
    "code lines": "code_lines",
    "1 importer": "one_importer",
    "in cycles": "in_cycles",
    "empty names %": "empty_percent",
    "compr./1000": "comprehensions_per_1000",
    "cond./1000": "conditionals_per_1000",
    "> 60 lines": "long_functions",
    "complexity > 15": "complex_functions",
    "fmt: skip": "fmt_skips",
}


def cell(value):
    """A count as people read it."""
    if isinstance(value, list):
        return str(len(value))
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def show(root):
    """Prints the table of one package and the functions that are too long or too complex."""
    packages = count_house(root)
    print(f"{'':12}", *COLUMNS)
    for name, counts in packages.items():
        cells = [cell(getattr(counts, part)).rjust(len(title)) for title, part in COLUMNS.items()]
        print(f"{name:12}", *cells)
    total = packages[root.name]
    for title, functions in (
        ("above 60 lines", total.long_functions),
        ("above complexity 15", total.complex_functions),
    ):
        print(f"\n{title}:", *functions, sep="\n  ")


if __name__ == "__main__":
    for directory in sys.argv[1:] or [ROOT / "tracekit", ROOT / "capture"]:
        show(Path(directory).resolve())
        print()
