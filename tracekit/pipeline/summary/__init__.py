"""The summary of a report: headline, main table, coverage and notes."""
