"""Parts of the dependency graph of one process: host threads, device ops, and who waits for whom."""
