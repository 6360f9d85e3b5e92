"""Devices: when they are busy, windows of their work, and the step and stage of each op."""
