"""Analyses of rollout engines by their own logs."""
