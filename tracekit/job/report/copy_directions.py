"""Directions of copies in sentences: H2D, D2H."""

DIRECTION_TITLES = {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D", "PtoP": "P2P"}
"""Titles by recorded direction."""
