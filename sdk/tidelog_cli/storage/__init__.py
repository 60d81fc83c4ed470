"""Commands on the tier and the stores of a cluster, and its jobs."""
