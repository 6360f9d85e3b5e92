"""SQL over the tables of profiles: a session of DuckDB that reads these and nothing else, and named recipes.

DuckDB is imported when a session is opened. Where rows come from is the caller's business.
"""
