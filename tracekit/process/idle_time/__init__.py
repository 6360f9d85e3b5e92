"""Idle time of devices: causes, attribution to host calls, launch gaps and queues."""
