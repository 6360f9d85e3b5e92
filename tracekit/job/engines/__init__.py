"""Rollout engines by their logs: samples, tables and charts."""
