"""Readers of the files that a job leaves when it hangs: flight-recorder dumps, stacks of threads, lines of watchdogs, NCCL RAS."""
