"""Logs of drivers and machines, next to the traces."""
