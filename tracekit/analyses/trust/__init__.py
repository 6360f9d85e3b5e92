"""Analyses of the recording itself: data quality, agreement of two profilers, GPU counters."""
