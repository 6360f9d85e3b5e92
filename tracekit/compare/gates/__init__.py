"""Rules that a comparison must keep, and their outcomes."""
