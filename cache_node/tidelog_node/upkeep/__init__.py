"""What a node does for its logs in the background: flushes, mending, checks."""
