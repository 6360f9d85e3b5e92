"""What several analyses need of one Trace: nesting of host ops, launch links, steps and stages.

Use as `trace.derived(nesting)`: each is computed once a Trace.
"""
