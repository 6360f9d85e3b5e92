"""Replay: the dependency graph of a run, the step that a change would give, and the owner of each lost nanosecond.

`process_graph` builds the graph of one process in its worker, of `process_parts`: `host_threads`, `device_ops`,
`recorded_waits`, `call_waits`, `hand_overs`.
`job_graph` joins the graphs of all processes at their collectives, `same_place_waits` adds waits that did not decide, and
`settle` makes the recorded times the solution of the graph. `ledger` walks back through it, `changes` describes what to change,
`apply` changes its weights, and `predict` times it again, with the `contention` of kernels with communication.
"""
