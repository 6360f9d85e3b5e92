"""Programs that leak, and programs that only look so: is each leak found, at its site, and is the rest silent? SIMULATED."""

import numpy as np
import pytest
from leak_patterns import CLEAN, LEAKS, RESERVED, GrownTensor, OutOfMemory, write_snapshots

from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options

SEEDS = range(5)
QUESTIONS = ("data-quality", "leaks", "memory-growth", "reserved-growth", "fragmentation", "memory", "out-of-memory")


def find(program, folder, seed):
    """The findings of the memory questions on the snapshots of a program."""
    write_snapshots(program, folder, np.random.default_rng(seed))
    report = pipeline.analyze_uncached(folder, Options(jobs=1, questions=QUESTIONS)).report
    return [finding for section in report.sections for finding in section.findings]


def names_site(finding, sites):
    """Whether the finding names one of these functions: in its claim, and as the innermost frame of its place."""
    return any(
        site in finding.claim and place.name and site in place.name.split(" < ")[0]
        for site in sites
        for place in finding.places
    )


def score(program, folder, seed):
    """(a leak is found, with its site) of a program that leaks."""
    found = [f for f in find(program, folder, seed) if f.rule == "memory-growth" and f.severity != "info"]
    return bool(found), any(names_site(f, LEAKS[program]) for f in found)


@pytest.mark.slow
def test_leaks_are_found_at_their_sites(tmp_path):
    scores = {
        (program.__name__, seed): score(program, tmp_path / f"{program.__name__}{seed}", seed)
        for program in LEAKS for seed in SEEDS
    }  # fmt: skip
    assert len(LEAKS) == 18
    missed = [key for key, (is_found, _) in scores.items() if not is_found]
    elsewhere = [key for key, (is_found, is_at_site) in scores.items() if is_found and not is_at_site]
    assert len(missed) <= 0.05 * len(scores), missed
    assert len(missed) + len(elsewhere) <= 0.1 * len(scores), (missed, elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.__name__)
def test_programs_without_a_leak_have_no_finding(tmp_path, program):
    for seed in SEEDS:
        found = find(program, tmp_path / str(seed), seed)
        assert [f.claim for f in found if f.severity != "info"] == []


@pytest.mark.slow
@pytest.mark.parametrize("program", RESERVED, ids=lambda program: program.__name__)
def test_reserved_memory_that_grows_at_constant_use_is_reported_with_its_cause(tmp_path, program):
    for seed in SEEDS:
        (found,) = find(program, tmp_path / str(seed), seed)
        assert (found.rule, found.severity) == ("reserved-growth", "medium")
        assert f"it lies {RESERVED[program]}" in found.claim


def test_a_tensor_that_grows_whenever_it_is_made_again_is_named(tmp_path):
    """Of 12 steps the first is warm-up: 5 MiB more in each of the other ones."""
    (found,) = [each for each in find(GrownTensor, tmp_path, 0) if each.rule == "memory-growth"]
    assert (
        found.claim
        == "memory allocated in job/train.py:21 cat_results is allocated again, larger, in each step: 5.00 MiB more per step"
    )


def test_a_leak_that_ends_in_an_oom_comes_before_it(tmp_path):
    assert [found.rule for found in find(OutOfMemory, tmp_path, 0)] == ["memory-growth", "out-of-memory"]
