"""Questions about the recording itself: whether the numbers can be trusted, and what else was recorded."""
