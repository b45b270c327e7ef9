"""The decoder: layers, kernels, residual wirings and shards."""
