"""Requests kept in flight under continuous batching, in closed form.

`closed_loop` is arithmetic on the times of steps, `capacity` says how many requests fit the KV cache, and `step` prices
the steps through `ladder_sim.simulate`.
"""
