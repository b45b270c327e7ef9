"""One replica: what an engine runs in each step, and what becomes of a request in it (`answer`).

`scheduler` decides on steps, with the `kv_blocks` of the KV cache and drafted tokens (`speculation`); `replica` runs
them. Times of steps are simulated (`ladder_sim.serving.steps`), or those of a log (`measured_steps`).
"""
