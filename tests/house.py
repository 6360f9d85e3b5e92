"""Dashboard of the code: size of packages, imports, cycles, names, lengths.

`python tests/house.py [DIRECTORY ...]` prints it for packages (`tracekit` and `capture` by default).
`test_house.py` has the few limits that fail a build.
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

MAX_FUNCTION_LINES, MAX_COMPLEXITY, MAX_ENTRIES = 60, 15, 20

_WORDS = """
again alike alone apart at beside every found given held here kept known least made many mine most
much of one others ours own rest said shown some taken theirs there these those together told whole
"""
EMPTY_WORDS = frozenset(_WORDS.split())
"""Function words and past participles: a function or parameter of this name does not say what it does or holds."""

FUNCTIONAL_TOOLS = ("attrgetter", "filter", "filterfalse", "itemgetter", "map", "methodcaller", "partial", "starmap")
PROTOCOL_NAMES = {"command", "fold", "judge", "load", "main", "measure", "read", "sniff"}
"""Names that every module of a kind defines: questions, readers, commands."""

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
    code_lines: int = 0
    import_lines: int = 0
    one_importer: int = 0
    in_cycles: int = 0
    names: int = 0
    empty_names: list[str] = field(default_factory=list)
    functional_tools: int = 0
    fmt_skips: int = 0
    long_functions: list[str] = field(default_factory=list)
    complex_functions: list[str] = field(default_factory=list)

    @property
    def empty_percent(self):
        """Names of functions and parameters that are empty words, in percent of all."""
        return 100 * len(self.empty_names) / max(self.names, 1)

    @property
    def imports_percent(self):
        """Code lines that are imports, in percent."""
        return 100 * self.import_lines / max(self.code_lines, 1)

    @property
    def functional_per_1000(self):
        """`map`, `filter`, `partial`, `lambda` and the like per 1,000 code lines."""
        return 1000 * self.functional_tools / max(self.code_lines, 1)

    def add(self, other):
        """Add the counts of another file or package."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))


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
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
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
    """Count one file; `name` is what its functions are listed under."""
    text = path.read_text()
    tree = ast.parse(text)
    counts = Counts(files=1, code_lines=code_lines(text, tree), fmt_skips=text.count("# fmt: skip"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            counts.import_lines += node.end_lineno - node.lineno + 1
        elif isinstance(node, ast.Lambda):
            counts.functional_tools += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            counts.functional_tools += node.func.id in FUNCTIONAL_TOOLS
        elif isinstance(node, FUNCTIONS):
            count_function(node, name, counts)
    return counts


def count_function(function, file, counts):
    """Add the names, the length and the complexity of one function to the counts of its file."""
    arguments = function.args
    parameters = [
        *(argument.arg for argument in arguments.posonlyargs + arguments.args),
        *(argument.arg for argument in arguments.kwonlyargs),
    ]
    for name in (function.name, *parameters):
        counts.names += 1
        if name.strip("_") in EMPTY_WORDS:
            counts.empty_names.append(f"{file}:{function.name} {name}")
    lines, branching = function.end_lineno - function.lineno + 1, complexity(function)
    if lines > MAX_FUNCTION_LINES:
        counts.long_functions.append(f"{file}:{function.name} ({lines} lines)")
    if branching > MAX_COMPLEXITY:
        counts.complex_functions.append(f"{file}:{function.name} ({branching})")


def repeated_names(root):
    """Map each name of a function or class that several modules define to these modules; underscores do not count."""
    modules_by_name = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                modules_by_name[node.name.lstrip("_")].add(module_name(path, root))
    return {
        name: sorted(modules)
        for name, modules in sorted(modules_by_name.items())
        if len(modules) > 1 and name not in PROTOCOL_NAMES
    }


def entries_by_folder(root):
    """Count modules and folders with modules directly in each folder of the package."""
    folders = {path.parent for path in root.rglob("*.py")}
    return {str(folder.relative_to(root)): entries(folder) for folder in sorted(folders)}


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
    return {name: imports_of(path, root, modules) for name, path in paths.items()} | {name: set() for name in stubs}


def layers_of(pyproject):
    """Map each package to its height above the ground, from the contract of layers in pyproject.toml."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {name.strip(): height for height, row in enumerate(reversed(rows)) for name in row.split("|")}


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
            packages[parts[0]].add(counts)
        packages[root.name].add(counts)
    packages[root.name] = packages.pop(root.name)
    return dict(packages)


def entries(folder):
    """How many modules and folders with modules lie directly in a folder."""
    return len({path.relative_to(folder).parts[0] for path in folder.rglob("*.py")})


COLUMNS = {
    "files": "files",
    "code lines": "code_lines",
    "imports %": "imports_percent",
    "1 importer": "one_importer",
    "in cycles": "in_cycles",
    "empty names %": "empty_percent",
    "functional/1000": "functional_per_1000",
    "> 60 lines": "long_functions",
    "complexity > 15": "complex_functions",
    "fmt: skip": "fmt_skips",
}


def cell(value):
    """A count as people read it."""
    if isinstance(value, list):
        return str(len(value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def show(root):
    """Prints the table of one package and the functions that are too long or too complex."""
    packages = count_house(root)
    print(f"{'':12}", *COLUMNS)
    for name, counts in packages.items():
        cells = [cell(getattr(counts, part)).rjust(len(title)) for title, part in COLUMNS.items()]
        print(f"{name:12}", *cells)
    total = packages[root.name]
    crowded = {name: count for name, count in entries_by_folder(root).items() if count > MAX_ENTRIES}
    print(f"\nnames defined in several modules: {len(repeated_names(root))}")
    for title, lines in (
        (f"folders of more than {MAX_ENTRIES} entries", [f"{n}: {c}" for n, c in crowded.items()]),
        ("functions and parameters named by an empty word", total.empty_names),
        ("above 60 lines", total.long_functions),
        ("above complexity 15", total.complex_functions),
    ):
        print(f"\n{title}:", *lines, sep="\n  ")


if __name__ == "__main__":
    for directory in sys.argv[1:] or [ROOT / "tracekit", ROOT / "capture"]:
        show(Path(directory).resolve())
        print()
