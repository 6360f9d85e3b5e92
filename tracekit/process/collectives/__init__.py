"""Collectives of one process: rows, names, arguments, sums and compute between them."""
