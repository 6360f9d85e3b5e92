"""Hangs of a job, by the flight recorders of its ranks, stacks of threads, lines of watchdogs and NCCL RAS."""
