"""What is simulated: model, cluster, workload, stack, and the scenario that joins them."""
