"""Analyses of reinforcement learning: rollout, batches, and the driver's log."""
