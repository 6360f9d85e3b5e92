"""Log warnings through the logger `capture`."""


def warn(message: str, *arguments: object) -> None:
    """Log a warning."""
    import logging  # imported here: a quarter of the import time of capture

    logging.getLogger("capture").warning(message, *arguments)
