"""Rollout engines: generations in traces; samples, requests, tables and charts from logs."""
