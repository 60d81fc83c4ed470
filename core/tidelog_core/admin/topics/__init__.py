"""Topics: which may be created or changed, where their partitions go, and the commits."""
