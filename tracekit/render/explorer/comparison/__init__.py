"""The comparison page: rows of both sides, and the parts of the change."""
