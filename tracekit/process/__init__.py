"""Measurements of one process that several analyses share: host calls, device work, steps, idle time, memory.

Call them as `trace.derived(build_nesting)`: each is computed once per Trace.
"""
