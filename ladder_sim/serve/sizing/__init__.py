"""How many GPUs a promise needs.

`capacity` searches for the fewest replicas on one plan and `best_plan` over plans; `points` counts and keeps what they
simulate. `fleet` gives the answer its intervals.
"""
