"""Real profiles as read from their raw rows, and the differences from what `tracekit analyze` says of them."""
