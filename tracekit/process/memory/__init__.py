"""Memory of one process: levels, categories, replayed snapshots, and who allocated what."""
