"""Facts of the memory of one process: levels, categories, what a snapshot replays, who allocated what."""
