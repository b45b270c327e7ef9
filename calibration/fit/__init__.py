"""From samples to a profile, without torch."""
