"""Caching of functions of names: the files of one run contain the same names again and again."""

from functools import lru_cache

cache_by_name = lru_cache(4096)
"""Decorator that caches the last 4,096 answers of a function of one text; few traces have more names."""
