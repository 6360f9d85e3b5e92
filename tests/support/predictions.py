"""Reports without what predictions add: savings, ranks and grades depend on the findings of all questions."""

from dataclasses import replace

from tracekit.model.report import Section
from tracekit.pipeline.prediction.predicting import SYMPTOM_RULES


def drop_predictions(section: Section) -> Section:
    """A section as its question made it, without symptoms: other findings cover these."""
    kept = [finding for finding in section.findings if finding.rule not in SYMPTOM_RULES]
    verdicts = tuple(v for v in section.verdicts if v.rule not in SYMPTOM_RULES)
    plain = tuple(replace(finding, saving=None, rank=None, severity="info", caveats=()) for finding in kept)
    return replace(section, findings=plain, verdicts=verdicts)
