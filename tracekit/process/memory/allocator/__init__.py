"""PyTorch's caching allocator, replayed over the history of a snapshot: with its own options, or with changed ones."""
