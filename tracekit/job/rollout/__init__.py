"""Rollout engines: generations and charts."""
