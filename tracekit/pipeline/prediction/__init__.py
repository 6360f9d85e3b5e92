"""Predicted steps: the graph of each run, what the fixes of findings save, and what-if questions."""
