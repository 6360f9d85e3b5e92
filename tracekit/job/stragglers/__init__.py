"""Stragglers: waits for late ranks, their detection and their causes."""
