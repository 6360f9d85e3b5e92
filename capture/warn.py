"""Log warnings through the logger `capture`."""


def warn(message: str, *arguments: object) -> None:
    """Log a warning."""
    import logging  # here: a quarter of what importing capture would cost

    logging.getLogger("capture").warning(message, *arguments)
