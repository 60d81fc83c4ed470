"""What can be seen of a node over HTTP: whether it lives, whether it is ready, its metrics."""
