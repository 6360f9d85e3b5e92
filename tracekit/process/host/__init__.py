"""Host threads: the tree of their rows, phases, CPU samples and frames of user code."""
