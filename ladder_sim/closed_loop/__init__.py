"""Requests kept in flight under continuous batching, each followed by the next: a closed loop.

`cycle` is arithmetic on the times of steps, `engine` takes one after the other where answers are short. `requests` says
which steps there are, `step` prices them, `loop` solves them for one variant. `load` is what an answer says of their
times, `checks` how far predictions of servings were off. `ladder_sim.serving` simulates requests one by one.
"""
