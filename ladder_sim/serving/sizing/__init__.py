"""How many GPUs an SLO needs.

`search` looks for the fewest replicas on one plan and `best_plan` over plans. `fleet` keeps what they simulate,
and gives the answer its intervals.
"""
