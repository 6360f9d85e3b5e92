"""Binary formats of measured tables: between workers, and in the measurement cache."""
