"""A comparison as a report: tables, charts, words."""
