"""Files grouped into runs: unrelated files, restarts, duplicates and the primary tool."""
