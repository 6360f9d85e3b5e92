"""Logs of drivers, next to the traces."""
