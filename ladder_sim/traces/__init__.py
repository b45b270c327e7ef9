"""Recorded runs: read a profiler's trace, replay it, change it, write it for Perfetto.

`graph` holds the types and imports `ladder_sim.errors` only. `kineto` (in), `chrome` (out, and back in), `whatif` and
`steps` build on it alone; `replay` and `summary` also on `ladder_sim.des`. Rewiring a trace is
`ladder_sim.traces.rewire`.
"""
