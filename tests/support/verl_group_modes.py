"""What `verl_group_run.py` runs, for tests that have no verl to import it with."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("verl_group_run.py")
MODES = {"step": {}, "stage": {"discrete": True}, "schedule": {"discrete": True, "schedule": {"wait": 1, "active": 1}}}
STEPS, MINI_BATCHES = (1, 3), 4
