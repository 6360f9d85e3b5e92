"""The switch where verl finds it by itself: the entry point `capture` of the group `verl.plugins` (verl 0.9.1).

    VERL_USE_EXTERNAL_PLUGINS=capture bash examples/gspo_trainer/…

for scripts that set VERL_USE_EXTERNAL_MODULES themselves. verl loads all plugins that are installed where that variable is
not set. This one switches only where it is named, so that installing it changes no run.
"""

import os

from capture.verl_plugins import VARIABLE, is_named_in

if is_named_in(os.environ.get(VARIABLE, "")):
    import capture.verl  # noqa: F401 - importing it is the switch
