"""Switch a verl run to capture through the entry point `capture` of the group `verl.plugins` (verl 0.9.1).

    VERL_USE_EXTERNAL_PLUGINS=capture bash examples/gspo_trainer/…

This is for scripts that set VERL_USE_EXTERNAL_MODULES themselves. Without VERL_USE_EXTERNAL_PLUGINS verl loads all
installed plugins, but this plugin switches only if the variable names it: installing it changes no run.
"""

import os

from capture.verl_plugins import VARIABLE, is_named_in

if is_named_in(os.environ.get(VARIABLE, "")):
    import capture.verl  # noqa: F401 - importing it is the switch
