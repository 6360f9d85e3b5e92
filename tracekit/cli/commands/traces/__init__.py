"""Commands that write traces: `export` and `cut`."""
