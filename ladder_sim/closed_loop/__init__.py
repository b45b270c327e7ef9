"""Requests kept in flight under continuous batching, each followed by the next: a closed loop.

`requests` says which steps are simulated, `step` prices them, `loop` serves the requests of one variant and says what
their times are made of: `schedule` says which requests share a step, `engine` what the steps take. `checks` says how
far predictions of servings were off. `ladder_sim.serving` simulates requests that arrive at a rate, each with lengths
of its own.
"""
