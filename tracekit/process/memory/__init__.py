"""Memory of one process: levels, categories, replayed snapshots and allocation sites."""
