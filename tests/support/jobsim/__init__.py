"""SIMULATED training jobs on GPUs, with one known fault or none: the traces they would leave, and what each fault costs.

`job` says what a job is and what can be wrong with it, `rank` is one process with its host clock and its streams,
`training` is what it does, `engine` lets the ranks meet in collectives, `kineto` writes what they recorded, `truth`
simulates the same job again without the fault, `faults` and `clean` list the kinds. Nothing here knows the tool
whose conclusions it is there to judge.

All times are whole nanoseconds. The same job gives the same bytes on every machine.
"""
