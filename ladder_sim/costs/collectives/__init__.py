"""Collectives: which algorithm runs, its formula, and what was measured of it."""
