"""Measured tables as bytes: between workers, in the cache and in saved files."""
