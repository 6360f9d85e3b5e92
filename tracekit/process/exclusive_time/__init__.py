"""Exclusive time: each nanosecond of a step window in one slot."""
