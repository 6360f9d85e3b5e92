"""Analyses across ranks and roles: stragglers, imbalance, communication, slow links, transfers."""
