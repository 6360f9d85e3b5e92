"""Answers about names, remembered: the files of one run hold the same names again and again."""

from functools import lru_cache

remembered = lru_cache(4096)
"""Makes a function of one text remember its last answers: so many names have few traces."""
