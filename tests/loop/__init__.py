"""The whole loop on this machine: run, time, simulate, predict, check."""
