"""Recorded runs as dependency graphs: `graph` holds their types.

`load` reads a profiler's files (`kineto`, `nsys`) or our own (`perfetto`, which also writes them). `iterations` finds
and chooses steps. `replay` simulates a graph, `summary` sums it up, `whatif` changes its times. `rewire` puts the
transformer blocks that `blocks` finds into another wiring, `replay` says what then slows what, and `wirings`
compares the results. `predicted` makes a graph of a simulated
step, `chakra` writes one for other simulators.
"""
