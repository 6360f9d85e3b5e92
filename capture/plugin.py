"""The switch where verl finds it by itself: the entry point `capture` of the group `verl.plugins` (verl 0.9.1).

    VERL_USE_EXTERNAL_PLUGINS=capture bash examples/gspo_trainer/…

for scripts that set VERL_USE_EXTERNAL_MODULES themselves. verl loads all plugins that are installed where that variable is
not set. This one switches only where it is named, so that installing it changes no run.
"""

import os

VARIABLE = "VERL_USE_EXTERNAL_PLUGINS"
NAME = "capture"


def is_named_in(plugins: str) -> bool:
    """Whether a list of plugins names this one, as verl reads such a list."""
    return NAME in (name.strip() for name in plugins.lower().split(","))


if is_named_in(os.environ.get(VARIABLE, "")):
    import capture.verl  # noqa: F401 - importing it is the switch
