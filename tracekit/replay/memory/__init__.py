"""What-ifs about memory: changes to an allocator and its requests, replayed over the history of a snapshot."""
