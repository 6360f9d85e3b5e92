"""Reading SQLite exports: pages, blocks, expressions."""
