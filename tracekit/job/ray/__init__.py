"""Tasks of a run that Ray recorded: facts of each timeline, and their samples for a comparison."""
