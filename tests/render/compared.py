"""A comparison written by hand, whose every number is known."""

from tracekit.compare.comparison import Change, Comparison, StepValue

MS = 1_000_000


def change(title, base, opt, word="inconclusive", *, low=None, high=None, **other):
    """A stage's change; times in ms, None where a side has none of it, else in all four of its steps."""
    times = [None if t is None else t * MS for t in (base, opt)]
    both = base is not None and opt is not None
    steps = {
        f"{side}_steps": other.pop(f"{side}_steps", 0 if t is None else 4)
        for side, t in zip(("base", "opt"), times, strict=True)
    }
    return Change(
        other.pop("name", "stage_time"),
        title,
        other.pop("role", None),
        other.pop("stage", title),
        "ns",
        "lower",
        word,
        *times,
        difference=times[1] - times[0] if both else None,
        ratio=base / opt if both else None,
        low=low,
        high=high,
        **steps,
        **other,
    )


STEP = change(
    "step", 100, 80, "improvement", low=1.2, high=1.3, name="step_time", stage=None,
    label="run-to-run", detectable=0.031, grand_ratio=1.25, median_ratio=1.24,
    base_runs=2, base_steps=4, opt_runs=2, opt_steps=4,
)  # fmt: skip


def comparison(*stages, step=STEP, **other):
    """A comparison of two runs a side; the first step of each is left out."""
    steps = tuple(
        StepValue(side, f"{side}_run{run}", number, (at + run + number) * MS, number > 1)
        for side, at in (("before", 97), ("after", 77))
        for run in (1, 2)
        for number in (1, 2, 3)
    )
    made = {
        "verdict": step.word,
        "headline": step,
        "changes": (step, *stages),
        "steps": steps,
        "min_effect": 0.03,
        **other,
    }
    return Comparison("0", "before", "after", **made)
