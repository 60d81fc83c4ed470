"""Which brokers get a partition's replicas, and which leads a diskless partition next."""
