"""What one forward pass does: the operations of a step and the order that the residual wiring leaves them.

May import `ladder_sim.specs`, `ladder_sim.units` and `ladder_sim.errors` only. Knows no times.
"""
