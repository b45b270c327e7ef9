"""Requests kept in flight under continuous batching, each followed by the next: a closed loop, in closed form.

`cycle` is arithmetic on the times of steps, `engine` takes one after the other where answers are short; `step` prices
the steps and simulates them; `load` is what an answer says
of their times, `checks` how far predictions of servings were off. `ladder_sim.serve` simulates requests one by one.
"""
