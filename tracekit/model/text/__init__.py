"""Text from outside: escaped, redacted, shortened, matched."""
