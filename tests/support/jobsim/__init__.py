"""SIMULATED training jobs on GPUs, with one known fault or none: the traces they would leave, and what each fault costs.

`job` says what a job is and what can be wrong with it, `rank` is one process with its host clock and its streams,
`training` is what it does, `engine` lets the ranks meet in collectives, `kineto` writes what they recorded, `truth`
simulates the same job again without the fault, `faults` and `clean` list the kinds. Nothing here knows the tool
whose conclusions it is there to judge.

A fault is repaired as a rule advises: pageable memory becomes pinned memory, and its copies stay. They take their bytes at
the rate of the link on the stream that they were on, and no host waits for them. Recordings of an H200 in `tests/data/gpu/pairs`
show this: 8.8 GB/s from pageable memory, 54.5 GB/s from pinned memory. Here these rates are 6 and 25 GB/s.

All times are whole nanoseconds. The same job gives the same bytes on every machine.
"""
