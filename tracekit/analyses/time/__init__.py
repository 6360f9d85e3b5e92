"""Analyses of time: steps, stages, GPU idle time and host activity."""
