"""Requests kept in flight under continuous batching, each followed by the next: a closed loop.

`engine` serves them one step after the other. `requests` says which steps are simulated, `step` prices them, `loop`
serves the requests of one variant and says what their times are made of, `checks` how far predictions of
servings were off. `ladder_sim.serving` simulates requests that arrive at a rate, each with lengths of its own.
"""
