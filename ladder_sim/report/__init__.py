"""Predictions as tables and files. May import everything below `ladder_sim.cli`."""
