"""From measurements to calibration profiles.

May import `ladder_sim.costs`, `ladder_sim.specs`, `ladder_sim.units` and `ladder_sim.errors`. `importers` and `show`
import neither torch nor `runtime`.
"""
