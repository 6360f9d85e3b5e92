"""Idle time of the job: causes, call tree, pauses, launches and waits for loaders."""
