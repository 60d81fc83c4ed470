"""Background work of a node on its logs: flushes, mending, checks."""
