"""Do the intervals cover what they promise? Simulated steps, runs and kernels through the shipped formulas."""

import numpy as np
import pytest

from tracekit.model.stats.certainty import ErrorSpread, compute_half_width, is_certain_change
from tracekit.model.stats.designs import (
    EarlierRuns,
    IntervalTerms,
    combine_variances_welch,
    compute_between_run_terms,
    compute_paired_step_terms,
    compute_within_run_terms,
    list_error_spreads,
)
from tracekit.model.stats.many import KernelLimits, compare_kernels
from tracekit.model.stats.noise import calibrate_noise
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict

pytestmark = pytest.mark.slow

REPS = 20_000
TABLE_REPS = 4_000
POINTS = 1.5
TRUE = 1.15
SIZES = (3, 5, 10, 20)


def half_width(terms, level):
    """Half of the interval of these terms."""
    return compute_half_width([ErrorSpread(np.sqrt(terms.variance), terms.df)], level)


def noise_half_width(sd, df, level):
    """Half of the interval that two runs of this A/A spread need."""
    return compute_half_width([ErrorSpread(2**0.5 * sd, df, drawn=False)], level)


def walk(random, shape, rho, sd):
    """Normal noise with this lag-1 correlation along the last axis."""
    drawn = random.standard_normal(shape)
    out = np.empty_like(drawn)
    out[..., 0] = drawn[..., 0]
    for at in range(1, shape[-1]):
        out[..., at] = rho * out[..., at - 1] + (1 - rho**2) ** 0.5 * drawn[..., at]
    return sd * out


def lognormal(sd, rho=0.0):
    return lambda random, n: (np.exp(walk(random, (REPS, n), rho, sd)), np.exp(sd**2 / 2))


def outliers(sd, chance, factor):
    def drawn(random, n):
        steps, mean = lognormal(sd)(random, n)
        wild = np.where(random.random((REPS, n)) < chance, factor, 1.0)
        return steps * wild, mean * (1 + chance * (factor - 1))

    return drawn


# Each with the coverage of the reference, nominal 95 %, at 3, 5, 10 and 20 steps of one run a side.
SCENARIOS = {
    "independent, 2 %": (lognormal(0.02), lognormal(0.02), (97, 97, 96, 96)),
    "independent, 10 %": (lognormal(0.1), lognormal(0.1), (97, 97, 96, 96)),
    "independent, 30 %": (lognormal(0.3), lognormal(0.3), (97, 96, 96, 96)),
    "unequal 15 %/3 %": (lognormal(0.15), lognormal(0.03), (95, 96, 96, 96)),
    "unequal 40 %/10 %": (lognormal(0.4), lognormal(0.1), (94, 95, 95, 95)),
    "correlated .3": (lognormal(0.05, 0.3), lognormal(0.05, 0.3), (92, 93, 93, 94)),
    "correlated .6": (lognormal(0.05, 0.6), lognormal(0.05, 0.6), (83, 85, 89, 93)),
    "correlated .9": (lognormal(0.05, 0.9), lognormal(0.05, 0.9), (58, 68, 80, 86)),
    "outliers 10 % × 1.5": (outliers(0.03, 0.1, 1.5), outliers(0.03, 0.1, 1.5), (98, 99, 99, 97)),
    "outliers in base": (outliers(0.03, 0.1, 1.5), lognormal(0.03), (84, 73, 70, 87)),
    "outliers 5 % × 3": (outliers(0.03, 0.05, 3.0), outliers(0.03, 0.05, 3.0), (97, 98, 98, 98)),
}


def covered(terms, truth, half=None):
    """In how many percent of repetitions the interval holds the true log ratio."""
    half = half_width(terms, 0.95) if half is None else half
    return 100 * float(np.mean(np.abs(terms.log_ratio - truth) <= half))


def sampling_error(percent, reps=TABLE_REPS):
    """What a simulated percentage itself is uncertain by: one standard error."""
    share = min(max(percent / 100, 0.001), 0.999)
    return 100 * (share * (1 - share) / reps) ** 0.5


@pytest.mark.parametrize("name", SCENARIOS)
def test_one_run_a_side_covers_what_the_reference_covers(name):
    random = np.random.default_rng(0)
    base, opt, wanted = SCENARIOS[name]
    found = []
    for n in SIZES:
        (one, one_mean), (two, two_mean) = base(random, n), opt(random, n)
        found.append(covered(compute_within_run_terms(TRUE * one, two), np.log(TRUE * one_mean / two_mean)))
    print(f"{name:22}", *(f"{value:6.1f} ({want})" for value, want in zip(found, wanted, strict=True)))
    allowed = [POINTS + sampling_error(want) for want in wanted]
    assert np.all(np.abs(np.array(found) - wanted) <= allowed), (found, wanted)


def runs_of(random, runs, steps, sd, rho, between):
    """Steps of runs, (repetitions × runs × steps), that differ between runs by `between`."""
    shift = between * random.standard_normal((REPS, runs, 1))
    return np.exp(walk(random, (REPS, runs, steps), rho, sd) + shift)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.03])
@pytest.mark.parametrize(("base", "opt"), [(2, 2), (3, 3), (5, 5), (10, 10), (3, 2), (5, 1), (6, 4)])
def test_runs_cover_whatever_they_differ_by(base, opt, between):
    random = np.random.default_rng(0)
    one = np.log(runs_of(random, base, 5, 0.05, 0.3, between).mean(axis=2))
    two = np.log(runs_of(random, opt, 5, 0.05, 0.3, between).mean(axis=2))
    found = covered(compute_between_run_terms(one, two), 0.0)
    print(f"{base} v {opt} runs, {between:.0%} between: {found:.1f}")
    # With fewer than four runs on a side the wider of two spreads counts where they seem to differ.
    assert -POINTS <= found - 95 <= (POINTS if min(base, opt) >= 4 else 2.0)


def test_pairs_cover_and_are_far_narrower_where_work_is_shared():
    random = np.random.default_rng(0)
    work = np.exp(0.2 * random.standard_normal((REPS, 5)))
    base, opt = (work * np.exp(0.02 * random.standard_normal((REPS, 5))) for _ in range(2))
    paired, apart = compute_paired_step_terms(base, opt), compute_within_run_terms(base, opt)
    print(f"paired {covered(paired, 0.0):.1f}, apart {covered(apart, 0.0):.1f}")
    assert abs(covered(paired, 0.0) - 95) <= POINTS
    assert covered(apart, 0.0) > 99
    narrow = np.median(half_width(paired, 0.95)) / np.median(half_width(apart, 0.95))
    assert narrow < 0.2


# Spread between runs, and what a within-run interval of 10 steps covers of it by the reference, which
# left out the correlation of steps here; counting it makes the interval wider but no less blind.
@pytest.mark.parametrize(("between", "blind"), [(0.005, 92), (0.01, 84), (0.02, 63), (0.03, 47)])
def test_calibrated_noise_covers_what_one_run_cannot_see(between, blind):
    random = np.random.default_rng(0)
    base, opt = (runs_of(random, 1, 10, 0.03, 0.0, between)[:, 0] for _ in range(2))
    equal = np.log(runs_of(random, 8, 10, 0.03, 0.0, between).mean(axis=2))
    terms = compute_within_run_terms(base, opt)
    wider = noise_half_width(equal.std(axis=1, ddof=1), 7, 0.95)
    alone = covered(terms, 0.0)
    found = covered(terms, 0.0, np.maximum(half_width(terms, 0.95), wider))
    print(f"{between:.1%} between: within-run {alone:.1f} ({blind}), with noise {found:.1f}")
    assert blind - POINTS < alone < blind + 7
    assert 94 <= found <= 98


SLOWER = (0.0, 0.03, 0.05, 0.10, 0.20)

# steps, runs, spread of a step, spread between runs; then in percent of cases a regression at each of
# SLOWER, by the reference: whole interval beyond 3 %, beyond 0 %, and beyond 3 % with A/A noise of 8 runs.
GATES = {
    "10 steps": (10, 1, 0.03, 0.01, (0.4, 7, 25, 84, 100), (8.5, 37, 67, 96, 100), (0, 2, 8, 65, 100)),
    "5 steps": (5, 1, 0.03, 0.01, (0.5, 6, 16, 64, 97), (6, 27, 47, 86, 99), (0, 1, 6, 44, 97)),
    "3 runs × 5": (5, 3, 0.03, 0.01, (0, 2, 11, 75, 100), (1.7, 22, 51, 97, 100), None),
    "10 steps, 15 %": (10, 1, 0.15, 0.02, (2.6, 5, 7, 13, 40), (5, 9, 12, 20, 50), (0.5, 1, 3, 5, 23)),
}  # fmt: skip

# The shipped formulas in the same cells. The reference simulated its gates with n − 1 degrees of freedom
# a side and with Welch's test for three runs; its estimator has n_eff − 1, and one pooled spread of runs that seem alike.
SHIPPED = {
    "10 steps": ((0.3, 6.7, 22.3, 76.8, 95.9), (6.4, 34.9, 59.9, 90.4, 96.7), (0.0, 1.6, 7.8, 60.2, 95.9)),
    "5 steps": ((0.6, 5.8, 15.8, 56.8, 84.2), (5.8, 24.0, 41.7, 73.6, 86.0), (0.1, 1.4, 5.0, 37.5, 83.9)),
    "3 runs × 5": ((0.0, 1.8, 12.4, 77.4, 100), (2.0, 23.5, 54.1, 96.4, 100), None),
    "10 steps, 15 %": ((2.3, 4.2, 6.0, 12.2, 34.8), (4.2, 7.3, 10.0, 18.8, 44.0), (0.6, 1.2, 1.8, 4.8, 19.3)),
}  # fmt: skip


def reference_terms(base, opt):
    """One comparison a row as the reference's gates made it; see SHIPPED."""
    if base.shape[1] == 1:
        n = base.shape[2]
        terms = compute_within_run_terms(base[:, 0], opt[:, 0])
        one, two = (x[:, 0].var(axis=1) / x[:, 0].mean(axis=1) ** 2 for x in (base, opt))
        return IntervalTerms(terms.log_ratio, terms.variance, combine_variances_welch(one, n - 1.0, two, n - 1.0)[1])
    means = [x.mean(axis=2) for x in (base, opt)]
    k = means[0].shape[1]
    parts = [m.var(axis=1, ddof=1) / k / m.mean(axis=1) ** 2 for m in means]
    ratio = np.log(means[0].mean(axis=1) / means[1].mean(axis=1))
    return IntervalTerms(ratio, *combine_variances_welch(parts[0], k - 1.0, parts[1], k - 1.0))


def simulated(name, terms_of):
    """Percent of regressions at each of SLOWER: beyond 3 %, beyond 0 %, beyond 3 % with A/A noise."""
    steps, runs, sd, between, *_ = GATES[name]
    random = np.random.default_rng(0)
    rows = []
    for slower in SLOWER:
        base = runs_of(random, runs, steps, sd, 0.3, between)
        opt = (1 + slower) * runs_of(random, runs, steps, sd, 0.3, between)
        equal = np.log(runs_of(random, 8, steps, sd, 0.3, between).mean(axis=2))
        terms = terms_of(base, opt)
        half = half_width(terms, 0.95)
        wide = np.maximum(half, noise_half_width(equal.std(axis=1, ddof=1), 7, 0.95))
        rows.append([
            100 * np.mean(-terms.log_ratio - reach > np.log1p(effect))
            for reach, effect in ((half, 0.03), (half, 0.0), (wide, 0.03))
        ])  # fmt: skip
    return np.array(rows).T


def shipped_terms(base, opt):
    """One comparison a row by the shipped estimator."""
    if base.shape[1] == 1:
        return compute_within_run_terms(base[:, 0], opt[:, 0])
    return compute_between_run_terms(np.log(base.mean(axis=2)), np.log(opt.mean(axis=2)))


@pytest.mark.parametrize("name", GATES)
def test_gates_raise_no_more_false_alarms_than_the_reference(name):
    found = simulated(name, shipped_terms)
    for row, wanted, shipped in zip(found, GATES[name][4:], SHIPPED[name], strict=True):
        if wanted is None:
            continue
        print(f"{name:15}", *(f"{value:6.1f} ({want})" for value, want in zip(row, wanted, strict=True)))
        # False alarms: at most the reference's. Power: less with one run, as that is the price of
        # counting correlated steps; more with three, as a pooled spread has more degrees of freedom.
        assert row[0] <= wanted[0] + POINTS + sampling_error(wanted[0], 2_000)
        allowed = np.array([POINTS + sampling_error(want, 2_000) for want in wanted])
        if GATES[name][1] == 1:
            assert (row <= wanted + allowed).all()
        else:
            assert (row >= wanted - allowed).all()
        assert np.abs(row - shipped).max() <= POINTS


@pytest.mark.parametrize("name", GATES)
def test_the_simulation_is_that_of_the_reference(name):
    found = simulated(name, reference_terms)
    for row, wanted in zip(found, GATES[name][4:], strict=True):
        if wanted is not None:
            print(f"{name:15}", *(f"{v:6.1f} ({want})" for v, want in zip(row, wanted, strict=True)))
            allowed = [POINTS + sampling_error(want, 2_000) for want in wanted]
            assert np.all(np.abs(row - wanted) <= allowed), (row, wanted)


@pytest.mark.parametrize("name", ["10 steps", "3 runs × 5"])
def test_verdicts_of_single_comparisons_agree_with_the_arrays(name):
    steps, runs, sd, between, *_ = GATES[name]
    random = np.random.default_rng(0)
    base = runs_of(random, runs, steps, sd, 0.3, between)[:500]
    opt = 1.1 * runs_of(random, runs, steps, sd, 0.3, between)[:500]
    equal = runs_of(random, 8, steps, sd, 0.3, between)[:500]
    spread = np.log(equal.mean(axis=2)).std(axis=1, ddof=1)
    sides = [[side[:, run] for run in range(runs)] for side in (base, opt)]
    terms = shipped_terms(base, opt)
    design = "steps" if runs == 1 else "runs"

    def is_beyond(spreads, least):
        return -terms.log_ratio - compute_half_width(spreads, 0.95) > least

    spreads = list_error_spreads(*sides, design, terms)
    alone = is_beyond(spreads, np.log1p(0.03))
    certain = alone & is_certain_change(terms.log_ratio, spreads)
    earlier = EarlierRuns(8, 7 * spread**2, None)
    wide = is_beyond(list_error_spreads(*sides, design, terms, earlier), np.maximum(np.log1p(0.03), spread))
    for at in range(500):
        found = choose_verdict(compute_speedup(list(base[at]), list(opt[at])), assume_independent_steps=True)
        assert (found.uncapped == "regression") == alone[at]
        # Three runs never show a change; one only where its steps stand for runs.
        assert (found.word == "regression") == (runs == 1 and certain[at])
        if runs == 1:
            noise = calibrate_noise(list(equal[at]))
            found = choose_verdict(compute_speedup(list(base[at]), list(opt[at]), noise=noise))
            assert (found.uncapped == "regression") == wide[at]
            assert found.word != "regression"


# Steps; then power in percent and false ones of 270 by the reference: Benjamini-Hochberg without a
# common shift, with one of 1 % uncorrected, with one of 1 % corrected, and that beyond 3 % as well.
KERNELS = {
    3: ((66, 0.4), (70, 20), (65, 0.4), None),
    5: ((89, 1.0), (92, 57), (89, 0.9), None),
    10: ((97, 1.4), (98, 93), (97, 1.2), (97, 0.4)),
    20: ((99, 1.5), (99, 127), (99, 1.5), None),
}
KERNEL_REPS = 400


@pytest.mark.parametrize("n", KERNELS)
def test_kernels_that_changed_are_told_from_a_clock_that_did(n):
    random = np.random.default_rng(0)
    limits = KernelLimits(least_difference=0.0)
    counts = {kind: [] for kind in ("no shift", "raw", "corrected", "beyond 3 %")}
    for _ in range(KERNEL_REPS):
        for clock in (0.0, 0.01):
            sd = np.exp(random.uniform(np.log(0.003), np.log(0.08), (300, 1)))
            effect = np.zeros((300, 1))
            effect[:30, 0] = random.choice([-1, 1], 30) * random.uniform(0.05, 0.3, 30)
            base, opt = (
                np.exp(sd * random.standard_normal((300, n)) + clock * random.standard_normal()) for _ in range(2)
            )
            found = compare_kernels(
                base, opt * np.exp(effect), [""] * 300, base_step=300.0, opt_step=300.0, limits=limits
            ).kernels
            raw = [kernel.q <= 0.05 for kernel in found]
            if clock:
                counts["raw"].append(raw)
                counts["corrected"].append([kernel.q_corrected <= 0.05 for kernel in found])
                counts["beyond 3 %"].append([kernel.changed for kernel in found])
            else:
                counts["no shift"].append(raw)
    for (kind, rows), wanted in zip(counts.items(), KERNELS[n], strict=True):
        hits = np.array(rows)
        power, false = 100 * hits[:, :30].mean(), hits[:, 30:].sum(axis=1)
        print(f"n={n} {kind:12} {power:5.1f} % {false.mean():6.1f} {wanted}")
        if wanted is not None:
            # False ones come in crowds where a clock moved: so uncertain is their mean, here and there.
            crowd = 2 * false.std() * (1 / KERNEL_REPS + 1 / 400) ** 0.5
            assert abs(power - wanted[0]) <= POINTS
            assert abs(false.mean() - wanted[1]) <= 0.5 + crowd
