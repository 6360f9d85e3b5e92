"""Where the wall time of two sides differs."""
