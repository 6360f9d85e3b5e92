"""The first screen: summary, main table, coverage and notes."""
