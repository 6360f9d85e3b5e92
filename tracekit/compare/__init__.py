"""Comparison of two sides, each one or more runs: speedups, their confidence, and their causes."""

from tracekit.model.display import import_display, make_module_callable

# `tracekit.compare` is a function of the pipeline, which depends on this package.
make_module_callable(__name__, lambda: import_display().compare)
