"""Logs of drivers and machines beside the traces."""
