"""Times on this machine: ops, collectives, whole passes. Needs torch and `runtime`."""
