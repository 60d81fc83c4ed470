"""Background work of a node on its logs: flushes, repair, checks."""
