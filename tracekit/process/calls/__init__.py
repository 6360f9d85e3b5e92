"""Host calls: their nesting, launches, paths, threads and activity."""
