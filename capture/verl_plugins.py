"""How verl 0.9.1 is told which plugins to load: the entry points of its group `verl.plugins`."""

VARIABLE = "VERL_USE_EXTERNAL_PLUGINS"
"""verl loads the entry points that it names; `auto`, its default, stands for all of them."""

NAME = "capture"
"""The entry point of this package."""


def is_named_in(plugins: str) -> bool:
    """Whether a list of plugins names this one, as verl reads such a list."""
    return NAME in (name.strip() for name in plugins.lower().split(","))
