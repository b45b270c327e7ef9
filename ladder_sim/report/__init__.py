"""How answers look: a report for each kind, with its columns, lines, JSON, CSV and figures.

May import everything below `ladder_sim.explorer`.
"""
