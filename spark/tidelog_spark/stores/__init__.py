"""A read's view of the cluster: its metadata, its objects, and each partition's log."""
