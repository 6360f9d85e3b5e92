"""Where the memory of two sides differs."""
