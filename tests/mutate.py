"""Mutants of the numeric modules: do the tests that belong to a module notice when its arithmetic is wrong?

`python tests/mutate.py --sample 210 --seed 0` changes one operator, constant or call at a time, in a copy of the
tree, and runs the tests of the changed module until the first fails. It lists the mutants that survive and exits
with 1 where fewer than 85 % of those that make a difference are killed. Mutants that make none are declared in
`mutants_equivalent.toml`, each with its reason.

Why not a tool of others: mutmut and cosmic-ray mutate a whole package or none and run one command for all of it;
what is needed here is a sample of a given seed over named modules, with the tests of each.
"""

from __future__ import annotations

import argparse
import ast
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import ceil
from pathlib import Path

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests" / "mutants_equivalent.toml"
LEAST = 0.85
"""The share of mutants that has to be killed."""
TIMES, LEAST_S = 5, 20
"""A mutant whose tests compute so many times longer than without it, and at least so long, is killed: it made a loop
endless. However busy the machine, the same."""
AROUND = 70
"""So many letters of a statement are shown before and after the place that was changed."""
TIMEOUT_S = 600
"""A mutant whose tests take longer, computing or not, is killed: something waits for ever."""

_ANALYSES: Mapping[str, tuple[str, ...]] = {
    f"tracekit/analyses/{module}.py": tuple(f"tests/analyses/{name}.py" for name in names)
    for module, names in {
        "memory/allocator": ("test_allocator_tables", "test_allocator"),
        "memory/fragmentation": ("test_fragmentation_judged", "test_fragmentation"),
        "memory/leaks": ("test_leaks_judged", "test_leaks"),
        "memory/live_steps": ("test_live_steps_judged", "test_live_steps"),
        "memory/memory": ("test_memory_judged", "test_memory"),
        "memory/memory_categories": ("test_categories_judged", "test_memory_categories"),
        "memory/memory_growth": ("test_growth_judged", "test_memory_growth", "test_leaks"),
        "memory/memory_peak": ("test_memory_peak_judged", "test_memory_peak"),
        "memory/out_of_memory": ("test_out_of_memory_judged", "test_out_of_memory"),
        "ops/copies": ("test_copies",),
        "ops/kernels": ("test_kernels",),
        "ops/matmuls": ("test_matmuls", "test_matmul_rules"),
        "ops/modules": ("test_modules", "test_module_calls"),
        "ops/operators": ("test_operators",),
        "ops/unfused": ("test_pointwise", "rules/test_rules"),
        "ranks/communication": ("test_communication", "test_communication_rules"),
        "ranks/fleets": ("test_fleets",),
        "rl/rollout": ("test_rollout_judged", "test_rollout"),
        "time/attribution": ("test_attribution",),
        "time/drift": ("test_drift",),
        "time/exclusive": ("test_exclusive",),
        "time/gpu_time": (
            "test_gpu_time",
            "test_attribution",
            "test_idle_claims",
            "test_held_back",
            "rules/test_rules",
        ),
        "time/host": ("test_host", "test_host_waits"),
        "time/idle": ("test_idle", "test_idle_rules", "test_longer_steps", "rules/test_waits_for_pauses"),
        "time/repeats": ("test_repeats",),
        "time/rl_matrix": ("test_rl_matrix", "test_rl_rules"),
        "time/steps": ("test_steps_section", "test_longer_steps"),
        "trust/counters": ("test_counters",),
        "trust/data_quality": ("test_data_quality",),
    }.items()
}

TESTS: Mapping[str, tuple[str, ...]] = {
    "tracekit/model/intervals.py": (
        "tests/model/test_intervals.py",
        "tests/process/test_shared_time.py",
        "tracekit/model/intervals.py",
        "tests/model/test_sweeps.py",
    ),
    "tracekit/model/tables/keys.py": ("tests/model/test_grouping.py", "tracekit/model/tables/keys.py"),
    "tracekit/job/collectives/matching.py": ("tests/job/test_matching.py",),
    "tracekit/job/stragglers/detection.py": (
        "tests/job/test_lateness.py",
        "tests/analyses/test_stragglers.py",
        "tests/analyses/test_late_causes.py",
        "tests/analyses/test_two_late_ranks.py",
        "tests/job/test_hosts.py",
        "tests/job/test_rank_stages.py",
    ),
    "tracekit/job/frames.py": (
        "tests/job/test_job_values.py",
        "tests/process/test_shared_time.py",
        "tests/analyses/test_steps_section.py",
    ),
    "tracekit/job/gpu_shares.py": ("tests/job/test_gpu_shares.py",),
    "tracekit/job/idle_time/causes.py": (
        "tests/analyses/test_idle.py",
        "tests/analyses/test_idle_rules.py",
        "tests/job/test_idle_outside.py",
        "tests/analyses/test_idle_claims.py",
        "tests/analyses/rules/test_waits_for_pauses.py",
    ),
    "tracekit/model/failed_questions.py": ("tests/model/test_failed_questions.py", "tests/pipeline/test_faults.py"),
    "tracekit/process/collectives/table.py": ("tests/process/test_collectives.py", "tests/compare/test_transfers.py"),
    "tracekit/process/ops/flops.py": ("tests/process/test_flops.py",),
    "tracekit/process/idle_time/causes.py": ("tests/process/test_idle.py", "tests/model/test_sweeps.py"),
    "tracekit/process/calls/launches.py": (
        "tests/process/test_launches.py",
        "tests/process/test_asynchronous_ops.py",
        "tests/model/test_sweeps.py",
    ),
    "tracekit/process/calls/nesting.py": (
        "tests/process/test_nesting.py",
        "tests/process/test_placement.py",
        "tests/process/test_recorded_jitter.py",
        "tests/model/test_sweeps.py",
    ),
    "tracekit/process/collectives/compute_between_collectives.py": ("tests/process/test_segments.py",),
    "tracekit/process/exclusive_time.py": ("tests/process/test_slots.py", "tests/process/test_slot_sums.py"),
    "tracekit/process/memory/replay.py": ("tests/process/test_snapshot_replay.py",),
    "tracekit/process/steps/windows.py": (
        "tests/process/test_step_windows.py",
        "tests/process/test_steps.py",
        "tests/process/test_start_up.py",
        "tests/process/test_repetition.py",
        "tests/process/test_recorded_jitter.py",
    ),
    "tracekit/model/stats/certainty.py": ("tests/model/stats/test_verdict.py", "tests/compare/test_planning.py"),
    "tracekit/model/stats/designs.py": ("tests/model/stats/test_speedup.py", "tests/model/stats/test_verdict.py"),
    "tracekit/model/stats/estimate.py": ("tests/model/stats/test_estimate.py", "tests/model/stats/test_student.py"),
    "tracekit/model/stats/many.py": ("tests/model/stats/test_many.py",),
    "tracekit/model/stats/needed.py": (
        "tests/model/stats/test_needed.py",
        "tests/model/stats/test_outlook.py",
        "tests/compare/test_planning.py",
        "tests/model/stats/test_verdict.py",
    ),
    "tracekit/model/stats/noise.py": ("tests/model/stats/test_noise.py", "tests/model/stats/test_speedup.py"),
    "tracekit/model/stats/odd_values.py": (
        "tests/model/stats/test_odd_values.py",
        "tracekit/model/stats/odd_values.py",
    ),
    "tracekit/model/stats/outlook.py": ("tests/model/stats/test_outlook.py", "tracekit/model/stats/outlook.py"),
    "tracekit/model/stats/speedup.py": ("tests/model/stats/test_speedup.py",),
    "tracekit/model/stats/trend.py": (
        "tests/model/stats/test_trend.py",
        "tracekit/model/stats/trend.py",
        "tests/model/stats/test_growth_shapes.py",
    ),
    "tracekit/model/stats/two_levels.py": (
        "tests/model/stats/test_two_levels.py",
        "tracekit/model/stats/two_levels.py",
    ),
    "tracekit/model/stats/verdict.py": ("tests/model/stats/test_verdict.py",),
    "tracekit/model/tables/frame.py": ("tests/model/test_frame.py", "tracekit/model/tables/frame.py"),
    "tracekit/model/units.py": ("tests/render/test_units.py", "tracekit/model/units.py"),
    "tracekit/job/memory/trend.py": (
        "tests/job/test_memory_series.py",
        "tests/analyses/test_memory_growth.py",
        "tests/job/test_projections.py",
    ),
    "tracekit/job/stages/periodic.py": ("tests/job/test_periodic_stages.py", "tracekit/job/stages/periodic.py"),
    "tracekit/job/stages/windows.py": ("tests/job/test_stage_windows.py", "tests/analyses/test_stage_names.py"),
    "tracekit/process/idle_time/attribution.py": (
        "tests/process/test_blamed_paths.py",
        "tests/process/test_blame.py",
        "tests/process/test_idle.py",
    ),
    "tracekit/compare/gates/outcomes.py": ("tests/compare/test_gates.py",),
    "tracekit/compare/wall_time/attribution.py": (
        "tests/compare/test_attributed_slots.py",
        "tests/compare/test_attribution.py",
        "tests/compare/test_residuals.py",
        "tests/compare/test_within_stages.py",
    ),
    "tracekit/readers/nsys/device.py": (
        "tests/readers/test_nsys_device.py",
        "tests/readers/test_nsys_times.py",
    ),
    "tracekit/readers/nsys/host.py": ("tests/readers/test_nsys_device.py", "tests/readers/test_nsys_cpu.py"),
    "tracekit/readers/nsys/nvtx/ranges.py": (
        "tests/readers/test_nsys_nvtx.py",
        "tests/readers/test_nsys_nvtx_times.py",
    ),
    "tracekit/readers/nsys/times.py": ("tests/readers/test_nsys_times.py",),
    **_ANALYSES,
    "tracekit/analyses/ops/shapes.py": ("tests/analyses/test_shapes.py", "tracekit/analyses/ops/shapes.py"),
    "tracekit/analyses/ranks/imbalance.py": (
        "tests/job/test_rank_stages.py",
        "tests/analyses/test_stragglers.py",
        "tests/analyses/rules/test_rules.py",
    ),
    "capture/profiler.py": ("tests/capture/test_profiler.py",),
}
"""The numeric modules, and the tests that belong to each."""

COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the module, where in it, what stood there, and what stands there now."""

    module: str
    function: str
    line: int
    before: str
    after: str
    place: int
    changed: ast.stmt = field(compare=False)

    def applied(self, text: str) -> str:
        """This text of the module with the change."""
        return _with(ast.parse(text), self.place, self.changed)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is known by, wherever its line moves to."""
        return self.module, self.function, self.before, self.after

    def __str__(self) -> str:
        before, after = _apart(self.before, self.after)
        return f"{self.module}:{self.line} {self.function}: {before}  →  {after}"


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of one module, in the order of its text."""
    tree = ast.parse((ROOT / module).read_text())
    for function, number, statement in _statements(tree):
        for changed in _changes(statement):
            text, was = ast.unparse(changed), ast.unparse(statement)
            if text != was:
                yield Mutant(module, function, statement.lineno, _first(was), _first(text), number, changed)


def _statements(tree: ast.Module) -> list[tuple[str, int, ast.stmt]]:
    """(name of the function, place in the walk, statement) of every statement that is in a function."""
    owner: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in ast.walk(node):
                owner[id(child)] = node.name
    return [
        (owner[id(node)], number, node)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assert)
        and id(node) in owner
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself, not those of statements within it, nor what nothing computes: `strict=`, types."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop(0)
        yield node
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        queue += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.stmt)
            and child is not annotation
            and not (isinstance(child, ast.keyword) and child.arg == "strict")
        ]


def _changes(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statement with one thing in it changed, for everything that can be; a call alone is dropped."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield ast.copy_location(ast.Pass(), statement)
    for place, node in enumerate(_own(statement)):
        for edit in _edits(node):
            copy = deepcopy(statement)
            target = next(n for at, n in enumerate(_own(copy)) if at == place)
            for name, value in edit.items():
                setattr(target, name, value)
            yield copy


def _edits(node: ast.AST) -> Iterator[dict[str, object]]:
    """The attributes to set on a node so that it means another thing."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield {"ops": [COMPARISONS[type(node.ops[0])]()]}
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield {"op": ARITHMETIC[type(node.op)]()}
    elif isinstance(node, ast.BoolOp):
        yield {"op": ast.And() if isinstance(node.op, ast.Or) else ast.Or()}
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield {"op": ast.UAdd()} if isinstance(node.op, ast.USub) else {"op": ast.USub()}
    elif isinstance(node, ast.IfExp | ast.If | ast.While):
        yield {"test": ast.UnaryOp(ast.Not(), node.test)}
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield {"value": not node.value}
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield {"value": node.value + 1}
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield {"id": NAMES[node.id]}
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield {"attr": NAMES[node.attr]}


def _with(tree: ast.Module, number: int, changed: ast.stmt) -> str:
    """The text of a module whose statement of this place in the walk is replaced, in the tree itself."""
    target = next(node for at, node in enumerate(ast.walk(tree)) if at == number)
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and any(item is target for item in value):
                value[[item is target for item in value].index(True)] = changed
    return ast.unparse(ast.fix_missing_locations(tree))


def _first(text: str) -> str:
    """The first line of a statement: of an `if` its condition."""
    return text.partition("\n")[0]


def _apart(before: str, after: str) -> tuple[str, str]:
    """Both without what is far from where they differ: a statement may be as long as a page."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
    begin = max(same - AROUND, 0)
    cut = "…" if begin else ""

    def shown(text: str) -> str:
        return f"{cut}{text[begin : same + AROUND]}{'…' if len(text) > same + AROUND else ''}"

    return shown(before), shown(after)


def declared() -> dict[tuple[str, str, str, str], str]:
    """The mutants that make no difference, and why."""
    found = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    assert all(one["reason"] for one in found), "every equivalent mutant needs its reason"
    return {(m["module"], m["function"], m["before"], m["after"]): m["reason"] for m in found}


def chosen(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants, as evenly over the modules as these have them, in an order of chance.

    The place of each depends on nothing but the seed and what it is: none moves where another is declared, where code
    beside it changes, or where other modules are asked for.
    """

    def place(mutant: Mutant) -> bytes:
        return sha256("\0".join((str(seed), *mutant.key)).encode()).digest()

    known = declared()
    rounds = [sorted((m for m in mutants(module) if m.key not in known), key=place) for module in modules]
    picked = [of[at] for at in range(count) for of in rounds if at < len(of)]
    return picked[:count]


def killed(mutant: Mutant, tree: Path, most_s: int) -> bool:
    """Whether the tests of its module fail on it, or compute longer than this."""
    path = tree / mutant.module
    whole, times = path.read_text(), path.stat()
    path.write_text(mutant.applied(whole))
    try:
        return not passes(TESTS[mutant.module], tree, most_s)
    finally:
        path.write_text(whole)
        # What was compiled from it before serves the next mutant.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def passes(tests: Sequence[str], tree: Path, most_s: int | None = None) -> bool:
    """Whether these tests pass in this tree, in time; what they compile is kept where there is no bound."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    # Without real profiles: they take long, and a skipped test is no failure then.
    unset = ("TRACEKIT_REAL_DATA", "PYTHONDONTWRITEBYTECODE")
    rest = {name: value for name, value in os.environ.items() if name not in unset}
    environment = {**rest, "PYTHONPATH": str(tree)} | ({} if most_s is None else {"PYTHONDONTWRITEBYTECODE": "1"})
    try:
        run = subprocess.run(
            [*command, *tests], cwd=tree, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False,
            preexec_fn=partial(_computes_at_most, most_s),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def _computes_at_most(most_s: int | None) -> None:
    """Sets in the process of the tests how long it may compute."""
    if most_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))


def _computed_s() -> float:
    """How long the tests up to now have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copied(folder: Path) -> Path:
    """A copy of what the tests need, with the compiled scanner."""
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".mypy_cache", "build")
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
    shutil.rmtree(tree / "reports", ignore_errors=True)
    return tree


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where enough mutants are killed, 1 where not, 2 where a test fails on a module as it is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=210, help="so many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3 * 3600, help="begin none after so long")
    parser.add_argument("modules", nargs="*", help="only these [default: all]")
    given = parser.parse_args(arguments)
    picked = chosen(given.modules or list(TESTS), given.sample, given.seed)
    began, survivors, tried = time.monotonic(), [], 0
    most_s: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder))
        for module in sorted({mutant.module for mutant in picked}):
            before = _computed_s()
            if not passes(TESTS[module], tree):
                print(f"{module}: its tests fail without any change", file=sys.stderr)
                return 2
            most_s[module] = max(ceil(TIMES * (_computed_s() - before)), LEAST_S)
        for mutant in picked:
            if time.monotonic() - began > given.seconds:
                break
            tried += 1
            if not killed(mutant, tree, most_s[mutant.module]):
                survivors.append(mutant)
                print(f"survived  {mutant}", flush=True)
    share = 1 - len(survivors) / tried if tried else 0.0
    print(f"{tried - len(survivors)} of {tried} mutants killed ({share:.0%}); seed {given.seed}, {len(picked) - tried} not tried")  # fmt: skip
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
