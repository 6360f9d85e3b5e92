"""Read the list of plugins that verl 0.9.1 loads: entry points of its group `verl.plugins`."""

VARIABLE = "VERL_USE_EXTERNAL_PLUGINS"
"""Environment variable with the entry points to load; the default `auto` means all."""

NAME = "capture"
"""Entry point of this package."""


def is_named_in(plugins: str) -> bool:
    """Whether a list of plugins, read as verl reads it, includes this one."""
    return NAME in (name.strip() for name in plugins.lower().split(","))
