"""Capture health: known problems, the signs of each, and Ray's session directories."""
