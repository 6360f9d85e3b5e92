"""Idle time of the job: causes, call tree, host pauses, launches and data loader waits."""
