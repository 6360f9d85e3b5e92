"""Questions of reinforcement learning: rollout, batches, and what the log of the driver knows."""
