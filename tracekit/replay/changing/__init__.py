"""Changes to a run: their selections, and their effects on the weights of its graph."""
