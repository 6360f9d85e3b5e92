"""The data model: tables, traces, reports, units, intervals, stages and statistics."""
