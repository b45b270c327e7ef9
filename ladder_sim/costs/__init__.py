"""How long each op takes, and how sure that is.

May import `ladder_sim.graph`, `ladder_sim.specs`, `ladder_sim.units` and `ladder_sim.errors` only.
"""
