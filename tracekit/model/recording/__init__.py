"""Kinds of recordings, and what a recording holds."""
