"""What is simulated: model, cluster, workload, stack, and the scenario that joins them.

May import `ladder_sim.units`, `ladder_sim.system` and `ladder_sim.errors` only.
"""
