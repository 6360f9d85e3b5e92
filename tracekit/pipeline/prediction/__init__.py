"""Predicted steps: the graph of each run, and the savings of the fixes of findings."""
