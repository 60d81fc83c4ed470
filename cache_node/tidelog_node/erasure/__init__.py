"""A node's part in an erasure: it rewrites or evicts its local segments."""
