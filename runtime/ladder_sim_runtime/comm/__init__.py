"""Communication between the ranks: starting them, collectives, emulated links."""
