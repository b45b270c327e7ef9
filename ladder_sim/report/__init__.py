"""The answers that do not print themselves, as tables, JSON and CSV; and every answer's figures.

May import everything below `ladder_sim.explorer`.
"""
