"""Questions that the log of an RL run answers without a profile."""
