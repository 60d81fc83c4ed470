"""Compaction of this node's logs: selects them, and rewrites each in a process of its own."""
