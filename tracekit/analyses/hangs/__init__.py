"""Questions about jobs that hang."""
