"""Compaction of this node's logs: which one and when, in processes of their own."""
