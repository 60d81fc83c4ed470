"""Leaders and replicas of partitions, changed for an administrator."""
