"""Data of the explorer page, from one trace: rows, steps, ranges, kernels, sums, gaps and host rows, exact."""
