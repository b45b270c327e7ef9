"""Measures single ops and collectives on this machine. Needs torch and `runtime`."""
