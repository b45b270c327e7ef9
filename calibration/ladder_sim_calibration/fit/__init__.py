"""Makes a profile of samples. Needs no torch."""
