"""Commands of `tracekit`, one file per command."""
