"""From a graph of ops to the seconds of a request."""
