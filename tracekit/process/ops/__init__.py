"""Operators: shapes, FLOPs, modules, kernel names and patterns that a fused kernel replaces."""
