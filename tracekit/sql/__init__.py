"""SQL over the tables of profiles: a locked-down DuckDB session, and named recipes.

DuckDB is imported when a session is opened. The caller supplies the rows.
"""
