"""The nouns that everything else speaks of: tables, traces, reports, units, intervals, stages, statistics."""
