"""Files, cache and memory of the machine that tracekit runs on."""
